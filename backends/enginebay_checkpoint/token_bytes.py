"""The bytes of the tokens of a tokenizer that the library tokenizers runs."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import Tokenizer

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_NO_BYTE = "\uffff"


class TokenBytes:
    """The bytes that each token id stands for; a special token's are its text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """`ValueError` for a tokenizer whose tokens do not stand for certain bytes."""
        self._spelled = _speller(_stages(tokenizer))
        self._name = tokenizer.id_to_token
        added = tokenizer.get_added_tokens_decoder().items()
        self._special = frozenset(token_id for token_id, token in added if token.special)

    def __call__(self, token_id: int) -> bytes:
        """The bytes of one token; none for an id that the tokenizer does not have."""
        name = self._name(token_id)
        if name is None:
            return b""
        return name.encode() if token_id in self._special else self._spelled(name)


def _stages(tokenizer: Tokenizer) -> list[Mapping[str, Any]]:
    decoder = tokenizer.decoder
    if decoder is None:
        return []
    read: dict[str, Any] = json.loads(decoder.__getstate__())
    stages: list[Mapping[str, Any]] = read["decoders"] if read["type"] == "Sequence" else [read]
    return stages


def _speller(stages: list[Mapping[str, Any]]) -> Callable[[str], bytes]:
    """From the name of a token in the vocabulary to its bytes, as the decoder has it."""
    kinds = [stage["type"] for stage in stages]
    if kinds == ["ByteLevel"]:
        return _byte_level
    if "ByteFallback" not in kinds:
        raise ValueError(f"its decoder ({', '.join(kinds) or 'none'}) does not go byte by byte")
    before = stages[: kinds.index("ByteFallback")]
    replaced = [
        (stage["pattern"]["String"], stage["content"])
        for stage in before
        if stage["type"] == "Replace" and "String" in stage["pattern"]
    ]

    def spelled(name: str) -> bytes:
        for old, new in replaced:
            name = name.replace(old, new)
        byte = _BYTE.fullmatch(name) if name.startswith("<0x") else None
        return bytes((int(byte[1], 16),)) if byte else name.encode()

    return spelled


def _byte_level(name: str) -> bytes:
    """Bytes that GPT-2 writes as characters; a name with others stands for itself."""
    try:
        return name.translate(_BYTES_OF_CHARACTERS).encode("latin-1")
    except UnicodeEncodeError:
        return name.encode()


def _bytes_of_characters() -> dict[int, str]:
    """Each character of GPT-2's byte alphabet to the character with that byte's number."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable} | dict.fromkeys(others, _NO_BYTE)
    return table | {256 + place: chr(byte) for place, byte in enumerate(others)}


_BYTES_OF_CHARACTERS = _bytes_of_characters()
