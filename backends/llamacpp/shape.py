"""What the header of a GGUF file says of the memory that its model takes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from backends.llamacpp.files import parts_of, unavailable
from enginebay import GgufHeader, GgufTensor, gguf_header

EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""The tensors of a layer's experts, by llama.cpp's names."""

_LAYER = re.compile(r"blk\.(\d+)\.")
_EMBEDDING_MODELS = {
    "bert",
    "eurobert",
    "gemma-embedding",
    "jina-bert-v2",
    "jina-bert-v3",
    "modern-bert",
    "neo-bert",
    "nomic-bert",
    "nomic-bert-moe",
}
_CACHE_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
"""Of a number in the KV cache, by its format."""


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model; `values` are its metadata, with what the options override."""

    path: Path
    values: Mapping[str, Any]
    vocab_size: int
    tensors: Sequence[GgufTensor]

    @classmethod
    def of(cls, path: Path, override: Mapping[str, Any] | None = None) -> "ModelShape":
        """Of the file, or of all parts of one. A `BackendUnavailableError` if it is damaged."""
        headers = [_header(part) for part in parts_of(path)]
        values = {**headers[0].values, **(override or {})}
        tensors = [tensor for header in headers for tensor in header.tensors]
        embedding = [t.shape[1] for t in tensors if t.name == "token_embd.weight" and t.shape[1:]]
        tokens = headers[0].lengths.get("tokenizer.ggml.tokens", 0)
        return cls(path, values, embedding[0] if embedding else tokens, tensors)

    @property
    def kind(self) -> str:
        """The architecture."""
        return str(self.values.get("general.architecture", ""))

    @property
    def trained_context(self) -> int:
        """Tokens that it was trained for; 0 if the file does not say."""
        return self._number("context_length")

    def length_range(self, context: int) -> Literal["any", "short", "long"]:
        """Which of its rotary factors a context of so many tokens has; most models have one set."""
        if not any(tensor.name.endswith("rope_factors_long.weight") for tensor in self.tensors):
            return "any"
        original = self._number("rope.scaling.original_context_length") or self.trained_context
        return "long" if context > original else "short"

    @property
    def layers(self) -> int:
        """Repeating layers; the output comes after them and counts as one more on the GPU."""
        return self._number("block_count")

    @property
    def width(self) -> int:
        """Numbers of a token between layers."""
        return self._number("embedding_length")

    @property
    def feed_forward(self) -> int:
        """Numbers of a token inside the widest feed-forward part; of all experts it runs."""
        plain = self._number("feed_forward_length")
        expert = self._number("expert_feed_forward_length") or plain
        return max(plain, expert * self._number("expert_used_count"))

    @property
    def heads(self) -> int:
        """Attention heads of a layer, the most that one has."""
        return max(self._list("attention.head_count"), default=0)

    @property
    def pools(self) -> bool:
        """Whether the file says that it embeds or ranks, rather than generates."""
        return bool(self._value("pooling_type")) or not self.causal

    @property
    def causal(self) -> bool:
        """Whether tokens see only those before them."""
        return self.kind not in _EMBEDDING_MODELS and self._value("attention.causal") is not False

    @cached_property
    def tied(self) -> bool:
        """Whether the embeddings are the output, too."""
        return not any(tensor.name == "output.weight" for tensor in self.tensors)

    @property
    def embedding_bytes(self) -> int:
        """Of the embeddings of the vocabulary."""
        return sum(each.bytes for each in self.tensors if each.name == "token_embd.weight")

    @property
    def has_experts(self) -> bool:
        """Whether layers have experts, of which a token needs a few."""
        return any(re.search(EXPERTS, tensor.name) for tensor in self.tensors)

    def layer_of(self, tensor: GgufTensor) -> int:
        """The index of its layer, that of the output after them all; -1 for the input."""
        if match := _LAYER.match(tensor.name):
            return min(int(match[1]), self.layers)
        return self.layers if tensor.name.startswith("output") else -1

    def cache_bytes(self, type_k: str, type_v: str) -> list[float]:
        """Of a token in the KV cache of each layer; too high where layers keep only a window.

        0 for a recurrent layer, and for a model without attention.
        """
        if not self.heads or not self.causal:
            return [0.0] * self.layers
        size = self.width // self.heads
        key = self._number("attention.key_length") or size
        value = self._number("attention.value_length") or size
        heads = self._list("attention.head_count_kv") or self._list("attention.head_count")
        each = (heads * self.layers)[: self.layers] if len(heads) == 1 else heads[: self.layers]
        row = key * _CACHE_BYTES[type_k] + value * _CACHE_BYTES[type_v]
        return [count * row for count in each] + [0.0] * (self.layers - len(each))

    def _value(self, key: str) -> Any:
        return self.values.get(f"{self.kind}.{key}")

    def _number(self, key: str) -> int:
        return max(self._list(key), default=0)

    def _list(self, key: str) -> list[int]:
        found = self._value(key)
        every = found if isinstance(found, list) else [found]
        return [item for item in every if isinstance(item, int) and not isinstance(item, bool)]


def _header(path: Path) -> GgufHeader:
    try:
        return gguf_header(path)
    except (OSError, ValueError) as error:
        raise unavailable(
            path, f"the file is corrupt or incomplete ({error}); download it again"
        ) from error
