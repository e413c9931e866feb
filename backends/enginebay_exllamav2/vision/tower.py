"""A model's vision tower: loaded, and run on one picture at a time."""

import copy
import logging
from typing import Any

import torch
from PIL import Image

from enginebay_checkpoint.tokenizer import Tokenizer
from enginebay_exllamav2.folder import ExLlamaV2Checkpoint
from enginebay_exllamav2.library import vision
from enginebay_exllamav2.options import ExLlamaV2Options
from enginebay_exllamav2.vision.families import PIXTRAL, Family, family_of, most_patches
from enginebay_exllamav2.weights import in_words

logger = logging.getLogger(__name__)


class Tower:
    """An `ExLlamaV2VisionTower`, which runs on the engine thread."""

    def __init__(self, tower: Any, family: Family) -> None:
        self.family = family
        self.config = tower.config
        self._tower = tower

    @torch.inference_mode()
    def encode(self, picture: Image.Image, model: Any, tokenizer: Any) -> Any:
        """The `ExLlamaV2MMEmbedding` of a picture of a fitted size, its rows on the CPU.

        `model` is the `ExLlamaV2` that reads it, `tokenizer` the library's.
        """
        made = self._tower.get_image_embeddings(model, tokenizer, picture)
        if self.family is PIXTRAL:
            # The library ends the last line twice (vlm/processor/pixtral.py, `postprocess`), where
            # the model knows an end of the picture only.
            made.embeddings = torch.cat((made.embeddings[:-2], made.embeddings[-1:]))
            made.length -= 1
        return made

    def close(self) -> None:
        """Free its memory; called once, last."""
        self._tower.unload()


def seeing_family(
    checkpoint: ExLlamaV2Checkpoint, options: ExLlamaV2Options, config: Any, tokenizer: Tokenizer
) -> Family | None:
    """How a model is shown pictures; None if it takes text only.

    Warns where it has a tower that is not used although it could be asked for.
    """
    if not options.vision or not checkpoint.config.get("vision_config"):
        return None
    family = family_of(config)
    if family is None:
        named = config.vision_model_type or "of an unnamed kind"
        reason = f"exllamav2 does not support its vision tower ({named})"
    elif not any(name.startswith(config.arch.vt_prefix) for name in config.tensor_file_map):
        reason = f"its folder has no weights of the vision tower ({config.arch.vt_prefix}*)"
    elif family.activation and config.vision_hidden_act != family.activation:
        reason = f"its vision tower has {config.vision_hidden_act}, exllamav2's {family.activation}"
    elif config.arch.lm.mrope and not config.mrope_section:
        reason = "its RoPE has no mrope_section"
    elif options.draft_model:
        reason = "exllamav2 takes no pictures beside a draft model; unset draft_model to use them"
    elif unknown := [text for text in family.texts if _tokens(tokenizer, text) != 1]:
        reason = f"its tokenizer has no token {unknown[0]}"
    else:
        return family
    logger.warning("%s: it takes text only: %s", checkpoint.path, reason)
    return None


def tower_bytes(config: Any) -> int:
    """GPU memory that the tower computes in, by its `ExLlamaV2Config`: its largest picture's."""
    width = 4 * config.vision_hidden_size + 2 * config.vision_intermediate_size
    return int(most_patches(config) * width * 2)


def load_tower(checkpoint: ExLlamaV2Checkpoint, config: Any, family: Family) -> Tower:
    """The tower of a model, on the first GPU. Before the model, which then takes what is left."""
    with in_words(checkpoint):
        tower = vision.vision_tower.ExLlamaV2VisionTower(_tower_config(config))
        try:
            tower.load()
        except BaseException:
            tower.unload()
            raise
    return Tower(tower, family)


def _tower_config(config: Any) -> Any:
    """The configuration of the tower: the model's, without what is only right for its text part."""
    own = copy.copy(config)
    own.no_sdpa = False  # what is wrong in it is the order of prompts, which pictures have not
    # The tower would scale its attention as the text part does (attn.py, `self.scaling`).
    own.attention_multiplier = own.query_pre_attn_scalar = None
    if config.vision_model_type == "qwen2.5":
        # transformers' Qwen2_5_VLPatchMerger; the library takes Qwen2's norm, and 5120 for all.
        own.arch = copy.copy(config.arch)
        own.arch.mmp = copy.copy(config.arch.mmp)
        own.arch.mmp.norm = "rmsnorm"
        own.vision_merger_intermediate_size = (
            config.vision_hidden_size * config.vision_spatial_merge_size**2
        )
    return own


def _tokens(tokenizer: Tokenizer, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False))
