"""What the header of a GGUF file says of the memory that its model takes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from enginebay import GgufHeader, GgufTensor, gguf_header
from enginebay_llamacpp.files import parts_of, unavailable

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
_RECURRENT = ("ssm_", "shortconv.", "time_mix_")
"""How the names of a recurrent layer's tensors begin."""

_STATE_BYTES = 4  # of a number in a recurrent state, which is float32 whatever the options say
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
    def slides(self) -> bool:
        """Whether some layers see only a window of the last tokens."""
        return bool(self._number("attention.sliding_window"))

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

        0 for a layer without attention.
        """
        if not self.heads or not self.causal:
            return [0.0] * self.layers
        size = self.width // self.heads
        key = self._number("attention.key_length") or size
        value = self._number("attention.value_length") or size
        heads = self._list("attention.head_count_kv") or self._list("attention.head_count")
        each = (heads * self.layers)[: self.layers] if len(heads) == 1 else heads[: self.layers]
        row = key * _CACHE_BYTES[type_k] + value * _CACHE_BYTES[type_v]
        counts = [*each, *[0] * (self.layers - len(each))]
        return [
            0.0 if recurrent and not attends else count * row
            for count, recurrent, attends in zip(
                counts, self._recurrent, self._attends, strict=True
            )
        ]

    def state_bytes(self) -> list[int]:
        """Of a sequence's recurrent state in each layer, as llama.cpp 0.3.36 lays it out."""
        numbers = self._state_numbers() if any(self._recurrent) else 0
        return [recurrent * numbers * _STATE_BYTES for recurrent in self._recurrent]

    def _state_numbers(self) -> int:
        if head := self._number("wkv.head_size"):
            return self.width * (head + (self._number("token_shift_count") or 2))
        if length := self._number("shortconv.l_cache"):
            return self.width * (length - 1)
        before = self._number("ssm.conv_kernel") - 1
        if head := self._number("kda.head_dim"):
            return self.heads * head * (head + 3 * before)
        inner, size = self._number("ssm.inner_size"), self._number("ssm.state_size")
        return inner * size + before * (inner + 2 * self._number("ssm.group_count") * size)

    @property
    def _recurrent(self) -> list[bool]:
        return [any(name.startswith(_RECURRENT) for name in names) for names in self._names]

    @property
    def _attends(self) -> list[bool]:
        return ["attn_k.weight" in names for names in self._names]

    @cached_property
    def _names(self) -> list[list[str]]:
        """The tensors of each layer."""
        found: list[list[str]] = [[] for _ in range(self.layers)]
        for tensor in self.tensors:
            match = _LAYER.match(tensor.name)
            if match and int(match[1]) < self.layers:
                found[int(match[1])].append(tensor.name[match.end() :])
        return found

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
