"""The demo model that sees: LLaVA's shape around the demo's Llama, and its folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    SiglipVisionConfig,
    SiglipVisionModel,
)
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

from demo.folder import save
from demo.patches import PATCH, ROWS
from demo.pictures import SIZE
from demo.prompts import Tokenizer
from demo.sights import IMAGE

_VOCABULARY = 3104
"""A multiple of 32 with room for `IMAGE`; the rest is unused."""


def make_tower() -> SiglipVisionModel:
    """A small SigLIP tower without its pooling head."""
    config = SiglipVisionConfig(
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=3,
        image_size=SIZE,
        patch_size=PATCH,
        hidden_act="gelu_pytorch_tanh",
        layer_norm_eps=1e-6,
        vision_use_head=False,
    )
    tower = SiglipVisionModel(config)
    # LLaVA reads the last layer before this norm.
    tower.post_layernorm.requires_grad_(False)
    return tower


def last_layer(tower: nn.Module, pixel_values: torch.Tensor) -> torch.Tensor:
    """What LLaVA reads of the tower: the last layer, before the norm."""
    hidden: torch.Tensor = tower(pixel_values, output_hidden_states=True).hidden_states[-1]
    return hidden


def make_seeing_model(
    text: LlamaForCausalLM, tower: SiglipVisionModel, image_token: int
) -> LlavaForConditionalGeneration:
    """The language model with the tower in front of it, and a projector that knows nothing yet."""
    text_config = type(text.config).from_dict(text.config.to_dict() | {"vocab_size": _VOCABULARY})
    config = LlavaConfig(
        vision_config=tower.config,
        text_config=text_config,
        image_token_id=image_token,
        image_seq_length=ROWS,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        projector_hidden_act="gelu_pytorch_tanh",
        tie_word_embeddings=True,
        bos_token_id=text.config.bos_token_id,
        eos_token_id=text.config.eos_token_id,
        pad_token_id=text.config.pad_token_id,
    )
    model = LlavaForConditionalGeneration(config)
    model.model.vision_tower.load_state_dict(tower.state_dict())
    weights = text.model.state_dict()
    old = weights["embed_tokens.weight"]
    # A logit that is the mean of all others is never the largest.
    unused = old.mean(0, keepdim=True).expand(_VOCABULARY - len(old), -1)
    weights["embed_tokens.weight"] = torch.cat([old, unused])
    model.model.language_model.load_state_dict(weights)
    model.tie_weights()
    return model


def make_processor(tokenizer: Tokenizer) -> LlavaProcessor:
    """LLaVA's own: padded to a square, resized bilinearly, normalized with CLIP's numbers."""
    make: Callable[..., Any] = LlavaImageProcessorPil
    pictures = make(
        do_pad=True,
        size={"height": SIZE, "width": SIZE},
        crop_size={"height": SIZE, "width": SIZE},
        resample=2,
    )
    return LlavaProcessor(
        image_processor=pictures,
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="full",
        image_token=IMAGE,
        chat_template=tokenizer.chat_template,
    )


def save_seeing_model(
    model: LlavaForConditionalGeneration, tokenizer: Tokenizer, target: Path
) -> None:
    """Write the folder that transformers loads with `AutoModelForImageTextToText`."""
    save(model, tokenizer, target, make_processor(tokenizer))
