"""Tiny random models that see, in folders as exllamav2 reads them, and in transformers."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as tf
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from enginebay import Media, MediaPrompt
from tests.backends.tiny import make_tokenizer

WORDS = [
    "[IMG]",
    "[IMG_BREAK]",
    "[IMG_END]",
    "<|vision_start|>",
    "<|image_pad|>",
    "<|vision_end|>",
    "<start_of_image>",
    "<image_soft_token>",
    "<end_of_image>",
]
VOCABULARY = 352
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: "
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% else %}PLACEHOLDER{% endif %}"
    "{% endfor %}{% endif %} {% endfor %}bot: "
)
_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "tie_word_embeddings": False,
}
_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 8,
    "image_size": 64,
    "hidden_act": "silu",
}
_NORMAL = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "rescale_factor": 1 / 255}
_SIDES = {"size": {"longest_edge": 64}, "patch_size": 8, "resample": 3}
_PIXELS = {"min_pixels": 16 * 16, "max_pixels": 64 * 64}
_PATCHES = {"patch_size": 8, "merge_size": 2, "temporal_patch_size": 2, **_PIXELS}
_SQUARE = {"size": {"height": 32, "width": 32}, "resample": 2}
FAMILIES = ("pixtral", "mistral3", "qwen2_vl", "qwen2_5_vl", "gemma3")


def word_id(text: str) -> int:
    """The id of one of `WORDS` in the tokenizers made here."""
    found: int = tokenizer().convert_tokens_to_ids(text)
    return found


def tokenizer(placeholder: str = "") -> tf.PreTrainedTokenizerFast:
    """That of all tiny models, with the words around pictures."""
    made = make_tokenizer()
    made.add_special_tokens({"additional_special_tokens": WORDS})
    made.chat_template = TEMPLATE.replace("PLACEHOLDER", placeholder)
    return made


def _config(family: str) -> tuple[Any, dict[str, Any], Any]:
    """The model's configuration, preprocessor_config.json, and transformers' processor."""
    match family:
        case "pixtral" | "mistral3":
            tower = {"vision_config": {**_TOWER, "model_type": "pixtral", "head_dim": 16}}
            words = {"image_token_index": word_id("[IMG]"), "vision_feature_layer": -1}
            if family == "pixtral":
                text = {**_TEXT, "model_type": "mistral"}
                words["vision_feature_select_strategy"] = "full"
                config = tf.LlavaConfig(text_config=text, **tower, **words)
            else:
                text = {**_TEXT, "model_type": "mistral"}
                words |= {"spatial_merge_size": 2, "tie_word_embeddings": False}
                config = tf.Mistral3Config(text_config=text, **tower, **words)
            named = {"image_processor_type": "PixtralImageProcessor", **_SIDES, **_NORMAL}
            # The library has whole pairs of patches in each direction.
            pairs = {**_SIDES, **_NORMAL, "patch_size": 16}
            return config, named, tf.PixtralImageProcessorPil(**pairs)
        case "qwen2_vl" | "qwen2_5_vl":
            axes = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
            text = {**_TEXT, "rope_parameters": axes}
            words = {
                "image_token_id": word_id("<|image_pad|>"),
                "vision_start_token_id": word_id("<|vision_start|>"),
                "vision_end_token_id": word_id("<|vision_end|>"),
            }
            tower = {"depth": 2, "num_heads": 2, "patch_size": 8}
            if family == "qwen2_vl":
                tower |= {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}
                config = tf.Qwen2VLConfig(text_config=text, vision_config=tower, **words)
            else:
                tower |= {"hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48}
                tower |= {"window_size": 32, "fullatt_block_indexes": [1]}
                config = tf.Qwen2_5_VLConfig(text_config=text, vision_config=tower, **words)
            named = {"image_processor_type": "Qwen2VLImageProcessor", **_PATCHES, **_NORMAL}
            return config, named, tf.Qwen2VLImageProcessorPil(**_PATCHES, **_NORMAL)
    siglip = {**_TOWER, "model_type": "siglip_vision_model", "vision_use_head": False}
    siglip |= {"image_size": 32, "hidden_act": "gelu_pytorch_tanh"}
    text = {**_TEXT, "query_pre_attn_scalar": 256, "sliding_window": 64}
    text["layer_types"] = ["sliding_attention", "full_attention"]
    config = tf.Gemma3Config(
        text_config=text,
        vision_config=siglip,
        image_token_index=word_id("<image_soft_token>"),
        mm_tokens_per_image=4,
    )
    named = {"image_processor_type": "Gemma3ImageProcessor", **_SQUARE, **_NORMAL}
    return config, named, tf.Gemma3ImageProcessorPil(**_SQUARE, **_NORMAL)


def make_seeing_model(folder: Path, family: str) -> "Seeing":
    """Save a random model of a family, with all that its makers' folders have."""
    config, named, processor = _config(family)
    torch.manual_seed(5)
    model = tf.AutoModelForMultimodalLM.from_config(config)
    with torch.no_grad():  # weights that make pictures, and where they stand, matter
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                width = parameter.shape[-1]
                parameter.normal_(0, (1.0 if "embed" in name else 1.5) * width**-0.5)
            elif parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.half().save_pretrained(folder)
    placeholder = {
        "pixtral": "[IMG]",
        "mistral3": "[IMG]",
        "gemma3": "<start_of_image>",
    }.get(family, "<|vision_start|><|image_pad|><|vision_end|>")
    tokenizer(placeholder).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(named))
    _as_released(folder)
    return Seeing(model.float().eval(), processor)


def _as_released(folder: Path) -> None:
    """Configurations and names of weights as they were before transformers 5."""
    file = folder / "config.json"
    content = json.loads(file.read_text())
    tower = content["vision_config"]
    content |= {"vocab_size": VOCABULARY, "eos_token_id": 1, "pad_token_id": 2}
    tower |= {"rope_theta": 10000.0, "spatial_patch_size": tower["patch_size"]}
    file.write_text(json.dumps(content))
    weights = load_file(folder / "model.safetensors")
    older = {
        name.replace("vision_tower.e", "vision_tower.vision_model.e").replace(
            "vision_tower.p", "vision_tower.vision_model.p"
        )
        if content["model_type"] == "gemma3"
        else name: tensor
        for name, tensor in weights.items()
    }
    save_file(older, folder / "model.safetensors")


class Seeing:
    """The same model in transformers."""

    def __init__(self, model: Any, processor: Any) -> None:
        self.model = model
        self._processor = processor

    def pixels(self, *media: Media) -> Mapping[str, Tensor]:
        """What its processor makes of pictures."""
        images = [Image.open(io.BytesIO(each.data)).convert("RGB") for each in media]
        made = self._processor(images, return_tensors="pt")
        return {name: value for name, value in made.items() if name != "num_crops"}

    @torch.no_grad()
    def logprobs(self, prompt: MediaPrompt, completion: list[int]) -> Tensor:
        """Log-probabilities `[tokens, vocabulary]` where each token of the completion is said.

        Gemma 3 reads pictures in order, as exllamav2 does.
        """
        ids = torch.tensor([[*prompt.token_ids, *completion]])
        media = [span.media for span in prompt.spans if not span.first]
        inputs: dict[str, Any] = dict(self.pixels(*media)) if media else {}
        kinds = torch.zeros_like(ids)
        if self.model.config.model_type.startswith("qwen"):
            for span in prompt.spans:
                kinds[0, span.start : span.end] = 1
            inputs["mm_token_type_ids"] = kinds
            self.model.base_model.rope_deltas = None
        elif self.model.config.model_type == "gemma3":
            inputs["token_type_ids"] = kinds
        logits = self.model(input_ids=ids, **inputs).logits[0, len(prompt.token_ids) - 1 : -1]
        return logits.float().log_softmax(-1)


def picture(seed: int, width: int = 48, height: int = 48) -> Media:
    """A picture of noise in large squares."""
    values = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    data = io.BytesIO()
    Image.fromarray(values).resize((width, height), Image.Resampling.NEAREST).save(data, "PNG")
    return Media(kind="image", data=data.getvalue(), type="image/png")
