"""Rotary position embeddings: settings from a model's `config.json`, and their frequencies.

The library knows the same kinds, but reads only configurations of transformers 4, and differs from
transformers in YaRN (the context it was loaded with, in place of the trained one) and longrope. So
frequencies are computed here, after transformers' `modeling_rope_utils`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_ALIASES = {"su": "longrope", "mrope": "default"}
KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
"""`dynamic` scales beyond the model's own context only, where this backend does not go."""

_NUMBERS = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
)


@dataclass(frozen=True, kw_only=True)
class Rope:
    """How a model turns positions into angles.

    `base` and `rotary_share` are None for the architecture's own; `local_base` is that of layers
    with a sliding window. `sections` are how many frequencies each axis of a picture has (M-RoPE),
    None for models without. `alpha` is NTK scaling of the base. `settings` are those of the kind,
    by transformers' names. `trained_context` is the context length the model was trained for,
    `context_length` the one it is used with.
    """

    kind: str = "default"
    base: float | None = None
    local_base: float | None = None
    rotary_share: float | None = None
    sections: list[int] | None = None
    alpha: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    trained_context: int = 0
    context_length: int = 0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Rope":
        """What a model's configuration says, in the form of transformers 4 or 5.

        `ValueError`, which says why, for what cannot be computed here.
        """
        settings, local = _settings(config)
        named = settings.get("rope_type") or settings.get("type") or "default"
        kind = _ALIASES.get(named, named) if isinstance(named, str) else None
        if kind not in KINDS:
            raise ValueError(f"RoPE of type {named!r}, which is not one of {', '.join(KINDS)}")
        if (local.get("rope_type") or "default") != "default":
            raise ValueError("scaled RoPE in layers with a sliding window")
        rope = cls(
            kind=kind,
            base=_number(settings, "rope_theta", above=1),
            local_base=_number(local, "rope_theta", above=1),
            rotary_share=_number(settings, "partial_rotary_factor"),
            sections=_sections(settings),
            settings=_with_original_context(settings, config),
            trained_context=_context(config),
        )
        rope._check()
        return rope

    @property
    def scale(self) -> float:
        """What positions are divided by."""
        return float(self.settings["factor"]) if self.kind == "linear" else 1.0

    @property
    def longest_context(self) -> int:
        """The longest context that the scaling supports, at least the trained one."""
        if self.kind not in ("linear", "yarn"):
            return self.trained_context
        return max(self.trained_context, int(self.settings["factor"] * self._original))

    def frequencies(self, base: float, rotary_dims: int) -> tuple[Tensor, float]:
        """Inverse frequencies `[rotary_dims / 2]`, and what sines and cosines are multiplied by."""
        if self.alpha != 1.0:
            base *= self.alpha ** (rotary_dims / (rotary_dims - 2))
        plain = base ** -(torch.arange(0, rotary_dims, 2, dtype=torch.float32) / rotary_dims)
        match self.kind:
            case "llama3":
                return self._llama3(plain), 1.0
            case "yarn":
                return self._yarn(plain, base, rotary_dims)
            case "longrope":
                return self._longrope(plain)
        return plain, 1.0

    def _llama3(self, plain: Tensor) -> Tensor:
        factor, low, high = (
            float(self.settings[name]) for name in ("factor", "low_freq_factor", "high_freq_factor")
        )
        turns = self._original * plain / (2 * math.pi)
        smooth = ((turns - low) / (high - low)).clamp(0, 1)
        return (1 - smooth) * plain / factor + smooth * plain

    def _yarn(self, plain: Tensor, base: float, dims: int) -> tuple[Tensor, float]:
        """https://arxiv.org/abs/2309.00071"""
        factor = float(self.settings["factor"])

        def dimension(turns: float) -> float:
            return dims * math.log(self._original / (turns * 2 * math.pi)) / (2 * math.log(base))

        first = dimension(self.settings.get("beta_fast") or 32)
        last = dimension(self.settings.get("beta_slow") or 1)
        if self.settings.get("truncate", True):
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dims - 1)
        last += 0.001 * (first == last)
        ramp = ((torch.arange(dims // 2, dtype=torch.float32) - first) / (last - first)).clamp(0, 1)
        return plain / factor * ramp + plain * (1 - ramp), self._yarn_attention(factor)

    def _yarn_attention(self, factor: float) -> float:
        def magnitude(share: float) -> float:
            return 0.1 * share * math.log(factor) + 1.0 if factor > 1 else 1.0

        if (given := self.settings.get("attention_factor")) is not None:
            return float(given)
        share, of_all = self.settings.get("mscale"), self.settings.get("mscale_all_dim")
        return magnitude(share) / magnitude(of_all) if share and of_all else magnitude(1.0)

    def _longrope(self, plain: Tensor) -> tuple[Tensor, float]:
        """https://arxiv.org/abs/2402.13753"""
        long = self.context_length > self._original
        name = "long_factor" if long else "short_factor"
        factors = torch.tensor(self.settings[name], dtype=torch.float32)
        stretch = self.settings.get("factor") or self.trained_context / self._original
        attention = self.settings.get("attention_factor")
        if attention is None:
            grown = math.log(stretch) / math.log(self._original) if stretch > 1 else 0.0
            attention = math.sqrt(1 + grown)
        return plain / factors, float(attention)

    @property
    def _original(self) -> int:
        return int(self.settings.get("original_max_position_embeddings") or self.trained_context)

    def _check(self) -> None:
        needs = {
            "linear": ("factor",),
            "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
            "yarn": ("factor",),
            "longrope": ("long_factor", "short_factor"),
        }
        for name in needs.get(self.kind, ()):
            if self.settings.get(name) is None:
                raise ValueError(f"RoPE of type {self.kind!r} without {name}")
        for name in _NUMBERS:
            _number(self.settings, name)
        if self.kind in ("llama3", "yarn", "longrope") and self._original < 2:
            raise ValueError(f"RoPE of type {self.kind!r} without its original context length")
        for name in ("long_factor", "short_factor"):
            factors = self.settings.get(name, [])
            if not (isinstance(factors, list) and all(map(_is_number, factors))):
                raise ValueError(f"RoPE with {name} that is not a list of numbers")


def _number(settings: Mapping[str, Any], name: str, *, above: float = 0) -> float | None:
    value = settings.get(name)
    if value is None:
        return None
    if not _is_number(value) or value <= above:
        raise ValueError(f"RoPE with {name} {value!r}")
    return float(value)


def _sections(settings: Mapping[str, Any]) -> list[int] | None:
    found = settings.get("mrope_section")
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(each, int) for each in found):
        raise ValueError(f"RoPE with mrope_section {found!r}")
    return list(found)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _settings(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Of layers with all tokens, and of those with a sliding window where they have others."""
    settings = config.get("rope_parameters")
    if settings is None:
        settings = _mapping(config.get("rope_scaling") or {})
        return {"rope_theta": config.get("rope_theta"), **settings}, {}
    settings = _mapping(settings)
    if "full_attention" not in settings:
        return settings, {}
    return _mapping(settings["full_attention"]), _mapping(settings.get("sliding_attention") or {})


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"RoPE settings that are not a mapping: {value!r}")
    return value


def _context(config: Mapping[str, Any]) -> int:
    value = config.get("max_position_embeddings")
    return value if isinstance(value, int) and value > 0 else 0


def _with_original_context(
    settings: Mapping[str, Any], config: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Phi-3 has the context of longrope beside its settings, not among them."""
    name = "original_max_position_embeddings"
    return (
        settings if settings.get(name) or not config.get(name) else {**settings, name: config[name]}
    )
