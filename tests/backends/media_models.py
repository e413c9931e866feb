"""Tiny random models that see or hear, with tokenizer and processor, saved like downloaded ones."""

import io
import json
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
import transformers as tf
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.utils import is_torchvision_available

from enginebay import Media

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: "
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% else %}PLACEHOLDER{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}bot: "
)
SPECIAL = [
    "<bos>",
    "<eos>",
    "<pad>",
    "<image>",
    "<audio>",
    "<video>",
    "<start_of_image>",
    "<end_of_image>",
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    "[IMG_BREAK]",
    "[IMG_END]",
    *(f"<row_{row}_col_{col}>" for row in range(1, 4) for col in range(1, 4)),
]
CORPUS = ["the quick brown fox jumps over the lazy dog", "what do you see, and what do you hear?"]
VOCABULARY = 384
_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
_SIGLIP = {**_TOWER, "model_type": "siglip_vision_model", "vision_use_head": False}
_WINDOWS = {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"] * 2}
_AXES = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
_SIZE = {"height": 32, "width": 32}


def tokenizer(**names: str) -> tf.PreTrainedTokenizerFast:
    """Bytes and special tokens; `names` are further attributes, such as `image_token`."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=alphabet,
    )
    made.train_from_iterator(CORPUS, trainer=trainer)
    fast = tf.PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        extra_special_tokens=names,
    )
    fast.chat_template = TEMPLATE.replace("PLACEHOLDER", names.get("placeholder", "<image>"))
    return fast


def _id(text: str) -> int:
    return SPECIAL.index(text)


def llava() -> tuple[Any, Any]:
    config = tf.LlavaConfig(
        vision_config=tf.CLIPVisionConfig(**_TOWER),
        text_config=tf.LlamaConfig(**_TEXT),
        image_token_index=_id("<image>"),
    )
    pictures = tf.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=_SIZE)
    processor = tf.LlavaProcessor(
        pictures,
        tokenizer(),
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tokenizer().chat_template,
    )
    return config, processor


def gemma3() -> tuple[Any, Any]:
    config = tf.Gemma3Config(
        text_config={**_TEXT, **_WINDOWS, "query_pre_attn_scalar": 16},
        vision_config=_SIGLIP,
        image_token_index=_id("<image>"),
        mm_tokens_per_image=4,
        boi_token_index=_id("<start_of_image>"),
        eoi_token_index=_id("<end_of_image>"),
    )
    words = tokenizer(
        placeholder="<start_of_image>",
        image_token="<image>",
        boi_token="<start_of_image>",
        eoi_token="<end_of_image>",
    )
    processor = tf.Gemma3Processor(
        tf.Gemma3ImageProcessorPil(size=_SIZE),
        words,
        image_seq_length=4,
        chat_template=words.chat_template,
    )
    return config, processor


def idefics3() -> tuple[Any, Any]:
    config = tf.Idefics3Config(
        vision_config=_TOWER,
        text_config={**_TEXT, "model_type": "llama"},
        image_token_id=_id("<image>"),
        scale_factor=2,
    )
    pictures = tf.Idefics3ImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
    )
    words = tokenizer()
    processor = tf.Idefics3Processor(
        pictures, words, image_seq_len=4, chat_template=words.chat_template
    )
    return config, processor


def mistral3() -> tuple[Any, Any]:
    tower = {**_TOWER, "model_type": "pixtral"}
    config = tf.Mistral3Config(
        text_config={**_TEXT, "model_type": "mistral"},
        vision_config=tower,
        image_token_index=_id("<image>"),
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )
    words = tokenizer()
    processor = tf.PixtralProcessor(
        tf.PixtralImageProcessorPil(size={"longest_edge": 32}, patch_size=16),
        words,
        patch_size=8,
        spatial_merge_size=2,
        image_token="<image>",
        chat_template=words.chat_template,
    )
    return config, processor


def paligemma() -> tuple[Any, Any]:
    config = tf.PaliGemmaConfig(
        vision_config={**_SIGLIP, "projection_dim": 64},
        text_config={**_TEXT, "model_type": "gemma"},
        image_token_index=_id("<image>"),
        projection_dim=64,
        hidden_size=64,
    )
    words = tokenizer(image_token="<image>")
    pictures = tf.SiglipImageProcessorPil(size=_SIZE)
    pictures.image_seq_length = 16
    processor = tf.PaliGemmaProcessor(pictures, words, chat_template=words.chat_template)
    return config, processor


def _qwen(config: Any, kind: Any, tower: dict[str, Any], **text: Any) -> tuple[Any, Any]:
    axes = {**_AXES, **text.pop("axes", {})}
    made = config(
        text_config={**_TEXT, "rope_parameters": axes, **text},
        vision_config={"patch_size": 8, "num_heads": 2, **tower},
        image_token_id=_id("<image>"),
        video_token_id=_id("<video>"),
        vision_start_token_id=_id("<start_of_image>"),
        vision_end_token_id=_id("<end_of_image>"),
    )
    words = tokenizer(
        placeholder="<start_of_image><image><end_of_image>",
        image_token="<image>",
        video_token="<video>",
    )
    pictures = tf.Qwen2VLImageProcessorPil(
        patch_size=8, merge_size=2, size={"shortest_edge": 16 * 16, "longest_edge": 96 * 96}
    )
    if not is_torchvision_available():
        return made, (pictures, words)
    videos = tf.Qwen2VLVideoProcessor(
        patch_size=8, merge_size=2, size={"shortest_edge": 16 * 16, "longest_edge": 96 * 96}
    )
    return made, kind(pictures, words, videos, chat_template=words.chat_template)


def qwen2_5_vl() -> tuple[Any, Any]:
    tower = {
        "depth": 2,
        "hidden_size": 32,
        "out_hidden_size": 64,
        "intermediate_size": 48,
        "window_size": 32,
        "fullatt_block_indexes": [1],
    }
    return _qwen(tf.Qwen2_5_VLConfig, tf.Qwen2_5_VLProcessor, tower)


def qwen3_vl() -> tuple[Any, Any]:
    tower = {
        "depth": 3,
        "hidden_size": 32,
        "out_hidden_size": 64,
        "intermediate_size": 48,
        "deepstack_visual_indexes": [0, 1],
        "num_position_embeddings": 64,
    }
    return _qwen(tf.Qwen3VLConfig, tf.Qwen3VLProcessor, tower, axes={"mrope_interleaved": True})


def qwen3_5() -> tuple[Any, Any]:
    tower = {
        "depth": 2,
        "hidden_size": 32,
        "out_hidden_size": 64,
        "intermediate_size": 48,
        "num_position_embeddings": 64,
    }
    linear = {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    }
    axes = {"mrope_interleaved": True, "partial_rotary_factor": 1.0}
    return _qwen(tf.Qwen3_5Config, tf.Qwen3VLProcessor, tower, axes=axes, **linear)


def qwen2_audio() -> tuple[Any, Any]:
    config = tf.Qwen2AudioConfig(
        audio_config={
            "model_type": "qwen2_audio_encoder",
            "num_mel_bins": 16,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "d_model": 32,
            "max_source_positions": 100,
        },
        text_config={**_TEXT, "model_type": "qwen2"},
        audio_token_index=_id("<audio>"),
    )
    words = tokenizer(placeholder="<audio>")
    sounds = tf.WhisperFeatureExtractor(feature_size=16, chunk_length=2)
    processor = tf.Qwen2AudioProcessor(
        sounds, words, audio_token="<audio>", chat_template=words.chat_template
    )
    return config, processor


def internvl() -> tuple[Any, Any]:
    tower = {**_TOWER, "image_size": [32, 32], "patch_size": [8, 8]}
    config = tf.InternVLConfig(
        vision_config=tower,
        text_config={**_TEXT, "model_type": "qwen2"},
        image_token_id=_id("<image>"),
        downsample_ratio=0.5,
    )
    words = tokenizer(
        start_image_token="<start_of_image>",
        end_image_token="<end_of_image>",
        context_image_token="<image>",
        video_token="<video>",
    )
    pictures = tf.GotOcr2ImageProcessorPil(size=_SIZE, crop_to_patches=True, max_patches=4)
    settings = {"processor_class": "InternVLProcessor", "image_seq_length": 4}
    return config, (pictures, words, settings)


def llava_onevision() -> tuple[Any, Any]:
    sizes = [[32, 32], [32, 64], [64, 32]]
    config = tf.LlavaOnevisionConfig(
        vision_config=_SIGLIP,
        text_config={**_TEXT, "model_type": "qwen2"},
        image_token_index=_id("<image>"),
        video_token_index=_id("<video>"),
        image_grid_pinpoints=sizes,
    )
    pictures = tf.LlavaOnevisionImageProcessorPil(size=_SIZE, image_grid_pinpoints=sizes)
    settings = {
        "processor_class": "LlavaOnevisionProcessor",
        "num_image_tokens": 16,
        "vision_feature_select_strategy": "full",
        "vision_aspect_ratio": "anyres_max_9",
    }
    return config, (pictures, tokenizer(image_token="<image>", video_token="<video>"), settings)


def gemma4() -> tuple[Any, Any]:
    config = tf.Gemma4Config(
        text_config={
            **_TEXT,
            **_WINDOWS,
            "global_head_dim": 16,
            "use_bidirectional_attention": "vision",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": VOCABULARY,
            "num_kv_shared_layers": 0,
        },
        vision_config={
            **{name: _TOWER[name] for name in ("hidden_size", "intermediate_size", "patch_size")},
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "pooling_kernel_size": 2,
            "position_embedding_size": 64,
        },
        audio_config=None,
        image_token_id=_id("<image>"),
        video_token_id=_id("<video>"),
        audio_token_id=_id("<audio>"),
        boi_token_id=_id("<start_of_image>"),
        eoi_token_id=_id("<end_of_image>"),
    )
    words = tokenizer(
        image_token="<image>",
        audio_token="<audio>",
        boa_token="<fake_token_around_image>",
        eoa_token="<global-img>",
        boi_token="<start_of_image>",
        eoi_token="<end_of_image>",
    )
    pictures = tf.Gemma4ImageProcessorPil(patch_size=8, pooling_kernel_size=2, max_soft_tokens=70)
    settings = {"processor_class": "Gemma4Processor", "image_seq_length": 70}
    return config, (pictures, words, settings)


def glm4v() -> tuple[Any, Any]:
    config = tf.Glm4vConfig(
        text_config={**_TEXT, "rope_parameters": {**_AXES, "partial_rotary_factor": 1.0}},
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "out_hidden_size": 64,
            "intermediate_size": 48,
            "num_heads": 2,
            "patch_size": 8,
            "image_size": 64,
        },
        image_token_id=_id("<image>"),
        video_token_id=_id("<video>"),
        image_start_token_id=_id("<start_of_image>"),
        image_end_token_id=_id("<end_of_image>"),
    )
    words = tokenizer(image_token="<image>", video_token="<video>")
    pictures = tf.Glm4vImageProcessorPil(
        patch_size=8, merge_size=2, size={"shortest_edge": 512, "longest_edge": 96 * 96 * 2}
    )
    return config, (pictures, words, {"processor_class": "Glm4vProcessor"})


FAMILIES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "llava": llava,
    "gemma3": gemma3,
    "idefics3": idefics3,
    "mistral3": mistral3,
    "paligemma": paligemma,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "qwen3_5": qwen3_5,
    "internvl": internvl,
    "llava_onevision": llava_onevision,
    "gemma4": gemma4,
    "glm4v": glm4v,
    "qwen2_audio": qwen2_audio,
}


def make_media_model(folder: Path, family: str) -> Path:
    """Save a random model of `family`, its tokenizer and its processor in `folder`."""
    config, processor = FAMILIES[family]()
    torch.manual_seed(1)
    model = tf.AutoModelForMultimodalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embed" not in name:  # so that differences show
                parameter.mul_(2.5)
        model.get_output_embeddings().weight[1] = 0  # so that greedy answers do not end at once
    model.save_pretrained(folder)
    for part in processor if isinstance(processor, tuple) else (processor,):
        if isinstance(part, dict):
            (folder / "processor_config.json").write_text(json.dumps(part))
        else:
            part.save_pretrained(folder)
    return folder


def picture(seed: int, width: int = 40, height: int = 40) -> Media:
    """A picture of noise in large squares."""
    values = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    data = io.BytesIO()
    Image.fromarray(values).resize((width, height), Image.Resampling.NEAREST).save(data, "PNG")
    return Media(kind="image", data=data.getvalue(), type="image/png")


def sound(seed: int, seconds: float = 0.5) -> Media:
    """Noise, as WAV."""
    values = np.random.default_rng(seed).normal(0, 4000, int(16_000 * seconds)).astype("<i2")
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(values.tobytes())
    return Media(kind="audio", data=data.getvalue(), type="audio/wav")


def video(seed: int, frames: int = 6) -> Media:
    """Pictures of noise, two a second."""
    data = io.BytesIO()
    with av.open(data, "w", format="mp4") as file:
        stream = file.add_stream("mpeg4", rate=2)
        stream.width, stream.height = 64, 48
        for number in range(frames):
            image = Image.open(io.BytesIO(picture(100 * seed + number, 64, 48).data))
            file.mux(stream.encode(av.VideoFrame.from_image(image)))
        file.mux(stream.encode())
    return Media(kind="video", data=data.getvalue(), type="video/mp4")
