"""The most characters one token can stand for, read from a tokenizer's pipeline.

The description is what `tokenizers.Tokenizer.to_str()` writes (`tokenizer.json`).
"""

from collections.abc import Iterable
from typing import Any

UNBOUNDED = 2**31
"""For tokenizers that may fold any amount of text into one token."""

# Canonical composition (NFC, NFKC) makes one character of at most four (U+1F82 and its kin).
_COMPOSED = 4

_KEEPS_ALL = {"ByteLevel", "Metaspace", "Digits", "Split", "Punctuation"}


def longest_token(vocabulary: Iterable[str], pipeline: dict[str, Any]) -> int:
    """An upper bound, `UNBOUNDED` if there is none.

    A vocabulary spells a token with at least as many characters as it stands for: one a byte if it
    is byte-level, `<0x0A>` for a byte of byte fallback, else the characters themselves. What is
    left to find is whether text may get shorter, or vanish, before the vocabulary is asked.
    """
    shrinks_by = max((_shrinks_by(step) for step in _steps(pipeline["normalizer"])), default=1)
    if shrinks_by == UNBOUNDED or _drops_text(pipeline) or _fuses_unknown(pipeline):
        return UNBOUNDED
    return max(map(len, vocabulary), default=1) * shrinks_by


def _steps(component: dict[str, Any] | None) -> list[dict[str, Any]]:
    if component is None:
        return []
    if component["type"] != "Sequence":
        return [component]
    inner = component.get("normalizers") or component.get("pretokenizers") or []
    return [step for part in inner for step in _steps(part)]


def _shrinks_by(normalizer: dict[str, Any]) -> int:
    match normalizer:
        case {"type": "NFC" | "NFKC"}:
            return _COMPOSED
        case {"type": "NFD" | "NFKD" | "Prepend" | "Lowercase" | "ByteLevel"}:
            return 1
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return 1 if len(new) >= len(old) else UNBOUNDED
    return UNBOUNDED


def _drops_text(pipeline: dict[str, Any]) -> bool:
    swallows = any(token["lstrip"] or token["rstrip"] for token in pipeline["added_tokens"])
    return swallows or any(
        step["type"] not in _KEEPS_ALL or step.get("behavior") == "Removed"
        for step in _steps(pipeline["pre_tokenizer"])
    )


def _fuses_unknown(pipeline: dict[str, Any]) -> bool:
    model = pipeline["model"]
    steps = _steps(pipeline["normalizer"]) + _steps(pipeline["pre_tokenizer"])
    every_byte = model.get("byte_fallback") or any(step["type"] == "ByteLevel" for step in steps)
    return model["type"] != "BPE" or not every_byte
