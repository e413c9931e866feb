"""Tiny random GGUF models that see or hear: one file of text, and an mmproj beside it."""

from collections.abc import Callable
from pathlib import Path

from tests.backends.gguf_models import (
    FEED_FORWARD,
    HEADS,
    LAYERS,
    VOCAB_SIZE,
    WIDTH,
    _attention,
    _layer,
    _start,
    _Writer,
    write_llama,
)

_HEAD = WIDTH // HEADS
_TOWER, _TOWER_FEED_FORWARD, _SIDE, _PATCH = 32, 64, 64, 8
_MELS, _STRETCHES = 80, 1500


def write_qwen2vl(path: Path, template: str | None = None) -> Path:
    """M-RoPE."""
    writer = _start(path, "qwen2vl", 6, template)
    _attention(writer.file)
    writer.file.add_rope_dimension_count(_HEAD)
    writer.file.add_rope_dimension_sections([4, 6, 6, 0])
    for layer in range(LAYERS):
        _layer(writer, f"blk.{layer}")
        for name, size in (("q", WIDTH), ("k", _HEAD), ("v", _HEAD)):
            writer.normal(f"blk.{layer}.attn_{name}.bias", size, scale=0.1)
    return writer.finish()


def write_gemma3(path: Path, template: str | None = None) -> Path:
    """The tokens of a picture see each other."""
    writer = _start(path, "gemma3", 7, template)
    _attention(writer.file)
    writer.file.add_sliding_window(64)
    writer.normal("output.weight", VOCAB_SIZE, WIDTH)
    for layer in range(LAYERS):
        prefix = f"blk.{layer}"
        _layer(writer, prefix)
        for name, size in (
            ("attn_q_norm", _HEAD),
            ("attn_k_norm", _HEAD),
            ("post_attention_norm", WIDTH),
            ("post_ffw_norm", WIDTH),
        ):
            writer.ones(f"{prefix}.{name}.weight", size)
    return writer.finish()


def _tower(path: Path, kind: str, side: str) -> _Writer:
    """The settings and layers that all have; `side` is vision or audio."""
    writer = _Writer(path, "clip", 8)
    file, short = writer.file, side[0]
    file.add_type("mmproj")
    file.add_bool(f"clip.has_{side}_encoder", True)
    file.add_string("clip.projector_type", kind)
    for name, value in {
        "embedding_length": _TOWER,
        "feed_forward_length": _TOWER_FEED_FORWARD,
        "block_count": 2,
        "projection_dim": WIDTH,
        "attention.head_count": 2,
    }.items():
        file.add_uint32(f"clip.{side}.{name}", value)
    file.add_float32(f"clip.{side}.attention.layer_norm_epsilon", 1e-6)
    for layer in range(2):
        prefix = f"{short}.blk.{layer}"
        for name, rows, columns in (
            *((f"attn_{part}", _TOWER, _TOWER) for part in ("q", "k", "v", "out")),
            ("ffn_up", _TOWER_FEED_FORWARD, _TOWER),
            ("ffn_down", _TOWER, _TOWER_FEED_FORWARD),
        ):
            writer.normal(f"{prefix}.{name}.weight", rows, columns)
            if (side, name) != ("audio", "attn_k"):
                writer.normal(f"{prefix}.{name}.bias", rows, scale=0.1)
        for name in ("ln1", "ln2"):
            _norm(writer, f"{prefix}.{name}")
    _norm(writer, f"{short}.post_ln")
    return writer


def _norm(writer: _Writer, name: str) -> None:
    writer.ones(f"{name}.weight", _TOWER)
    writer.normal(f"{name}.bias", _TOWER, scale=0.1)


def _eyes(path: Path, kind: str) -> _Writer:
    writer = _tower(path, kind, "vision")
    file = writer.file
    file.add_uint32("clip.vision.image_size", _SIDE)
    file.add_uint32("clip.vision.patch_size", _PATCH)
    file.add_array("clip.vision.image_mean", [0.5] * 3)
    file.add_array("clip.vision.image_std", [0.5] * 3)
    writer.normal("v.patch_embd.weight", _TOWER, 3, _PATCH, _PATCH, scale=0.1)
    return writer


def _seats(writer: _Writer) -> None:
    writer.file.add_bool("clip.use_gelu", True)
    writer.normal("v.patch_embd.bias", _TOWER, scale=0.1)
    writer.normal("v.position_embd.weight", (_SIDE // _PATCH) ** 2, _TOWER)


def write_mlp(path: Path, width: int = WIDTH, tiles: bool = False) -> Path:
    """LLaVA's: 64 tokens for any picture. Another `width` makes it another model's.

    With `tiles` larger pictures have several of 64 tokens each, as LLaVA 1.6 has them.
    """
    writer = _eyes(path, "mlp")
    _seats(writer)
    writer.file.add_array("clip.vision.feature_layer", [2])
    if tiles:
        writer.file.add_array("clip.vision.image_grid_pinpoints", [64, 128, 128, 64, 128, 128])
    writer.normal("mm.0.weight", FEED_FORWARD, _TOWER)
    writer.normal("mm.0.bias", FEED_FORWARD, scale=0.1)
    writer.normal("mm.2.weight", width, FEED_FORWARD)
    writer.normal("mm.2.bias", width, scale=0.1)
    return writer.finish()


def write_qwen2vl_merger(path: Path) -> Path:
    """As many tokens as the picture is large: one for 16 x 16 pixels."""
    writer = _eyes(path, "qwen2vl_merger")
    wide = 4 * _TOWER
    writer.normal("v.patch_embd.weight.1", _TOWER, 3, _PATCH, _PATCH, scale=0.1)
    writer.normal("mm.0.weight", wide, wide)
    writer.normal("mm.0.bias", wide, scale=0.1)
    writer.normal("mm.2.weight", WIDTH, wide)
    writer.normal("mm.2.bias", WIDTH, scale=0.1)
    return writer.finish()


def write_gemma3_projector(path: Path, scale: int = 2) -> Path:
    """16 tokens for any picture, after a mean over `scale` x `scale` patches."""
    writer = _eyes(path, "gemma3")
    _seats(writer)
    writer.file.add_uint32("clip.vision.projector.scale_factor", scale)
    writer.normal("mm.input_projection.weight", _TOWER, WIDTH)
    writer.ones("mm.soft_emb_norm.weight", _TOWER)
    return writer.finish()


def write_qwen2a(path: Path) -> Path:
    """Sound, padded to 30 s: 750 tokens."""
    writer = _tower(path, "qwen2a", "audio")
    writer.file.add_uint32("clip.audio.num_mel_bins", _MELS)
    writer.file.add_uint32("clip.audio.projector.stack_factor", 4)
    writer.normal("a.position_embd.weight", _STRETCHES, _TOWER, scale=0.1)
    for number, inputs in ((1, _MELS), (2, _TOWER)):
        writer.normal(f"a.conv1d.{number}.weight", _TOWER, inputs, 3, scale=0.1)
        writer.normal(f"a.conv1d.{number}.bias", _TOWER, 1, scale=0.1)
    writer.normal("mm.a.fc.weight", WIDTH, _TOWER)
    writer.normal("mm.a.fc.bias", WIDTH, scale=0.1)
    return writer.finish()


PAIRS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Path]]] = {
    "llava": (write_llama, write_mlp),
    "qwen2vl": (write_qwen2vl, write_qwen2vl_merger),
    "gemma3": (write_gemma3, write_gemma3_projector),
    "llava tiles": (write_llama, lambda path: write_mlp(path, tiles=True)),
    "qwen2a": (lambda path: write_llama(path, context=2048), write_qwen2a),
}


def write_pair(kind: str, folder: Path) -> Path:
    """A model of one of `PAIRS` and its mmproj, in a folder of their own."""
    text, mmproj = PAIRS[kind]
    folder.mkdir(parents=True, exist_ok=True)
    mmproj(folder / "mmproj.gguf")
    return text(folder / f"{kind}.gguf")
