"""Text to tokens and back, from any thread."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any, Protocol, cast

from tokenizers import Tokenizer as RawTokenizer
from tokenizers import normalizers
from transformers import AutoTokenizer
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from enginebay import InvalidRequestError, UnsupportedParameterError
from enginebay_checkpoint.folder import Checkpoint
from enginebay_checkpoint.longest_token import UNBOUNDED, longest_token
from enginebay_checkpoint.token_bytes import TokenBytes


class TransformersTokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    chat_template: str | dict[str, str] | None
    eos_token_id: int | None
    all_special_ids: list[int]
    added_tokens_decoder: dict[int, Any]

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool,
        verbose: bool,
        split_special_tokens: bool = False,
    ) -> list[int]: ...
    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        clean_up_tokenization_spaces: bool,
    ) -> str: ...
    def get_vocab(self) -> dict[str, int]: ...


class Tokenizer:
    """A transformers tokenizer that encodes with or without special tokens.

    Special tokens written in a text are recognised, and written out when decoded.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = cast(TransformersTokenizer, tokenizer)
        self._backend: RawTokenizer | None = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:
            # Left to itself transformers does this within `encode`: a change to a tokenizer that
            # other threads are using, which fails with "Already borrowed".
            self._backend.no_truncation()
            self._backend.no_padding()
        self.token_text = cache(lambda token_id: self.decode((token_id,)))
        self.token_bytes = cache(self._token_bytes)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`. `InvalidRequestError` for a lone surrogate."""
        _check(text)
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens, verbose=False)

    def encode_plain(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The same, but what looks like a special token is plain text.

        `UnsupportedParameterError` from tokenizers that cannot do that.
        """
        if not self._special_text.search(text):
            return self.encode(text, add_special_tokens=add_special_tokens)
        if self._splitting is not None:
            ids: list[int] = self._splitting.encode(text, add_special_tokens=add_special_tokens).ids
            return ids
        try:
            return self._tokenizer.encode(
                text,
                add_special_tokens=add_special_tokens,
                verbose=False,
                split_special_tokens=True,
            )
        except ValueError as error:
            raise UnsupportedParameterError(f"not with this model's tokenizer: {error}") from error

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Token ids of two texts in the tokenizer's format for pairs, and the segment of each.

        What looks like a special token is plain text. `InvalidRequestError` for a lone surrogate.
        """
        _check(first + second)
        special = self._special_text.search(first) or self._special_text.search(second)
        fast = self._splitting if special else self._backend
        if fast is not None:
            encoding = fast.encode(first, second)
            return encoding.ids, encoding.type_ids
        both = cast(Any, self._tokenizer)(
            first, second, split_special_tokens=True, return_token_type_ids=True
        )
        return both["input_ids"], both["token_type_ids"]

    @property
    def tells_segments(self) -> bool:
        """Whether its models are given the segment of each token."""
        return "token_type_ids" in cast(Any, self._tokenizer).model_input_names

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The text that the tokenizer's chat template makes of messages."""
        made = cast(Any, self._tokenizer).apply_chat_template(
            list(messages), tokenize=False, **variables
        )
        return str(made)

    def lower_case(self) -> None:
        """Put texts into lower case from now on, before anything else is done to them."""
        assert self._backend is not None, "this tokenizer is written in Python"
        first, then = normalizers.Lowercase(), self._backend.normalizer
        self._backend.normalizer = normalizers.Sequence([first, then] if then else [first])

    @cached_property
    def outer_tokens(self) -> tuple[list[int], list[int]]:
        """The special tokens in front of any text and behind it."""
        bare, whole = (self.encode("a", add_special_tokens=outer) for outer in (False, True))
        places = range(len(whole) - len(bare) + 1)
        start = next(at for at in places if whole[at : at + len(bare)] == bare)
        return whole[:start], whole[start + len(bare) :]

    @cached_property
    def _splitting(self) -> Any:
        """A tokenizer of its own that splits special tokens: the switch is not for one text."""
        if self._backend is None:
            return None
        splitting = type(self._backend).from_str(self._backend.to_str())
        splitting.encode_special_tokens = True
        return splitting

    @cached_property
    def _special_text(self) -> re.Pattern[str]:
        """What `encode` would take for a special token, or may, as far as a search can tell."""
        special = [
            token for token in self._tokenizer.added_tokens_decoder.values() if token.special
        ]
        if any(token.normalized for token in special):  # and so would other texts
            return re.compile("")
        texts = sorted((re.escape(token.content) for token in special), key=len, reverse=True)
        return re.compile("|".join(texts) or "(?!)")

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`; ids that the tokenizer does not know have none."""
        return self._tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def _token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text that has begun, of a special token its text."""
        if self._own_bytes:
            return self._own_bytes(token_id)
        before = self.encode("a", add_special_tokens=False)
        text = self.decode([*before, token_id])
        return text.removeprefix(self.decode(before)).encode()

    @cached_property
    def _own_bytes(self) -> TokenBytes | None:
        """None for a tokenizer whose tokens are whole characters, such as WordPiece."""
        try:
            return TokenBytes(self._backend) if self._backend is not None else None
        except ValueError:
            return None

    @property
    def eos_token_id(self) -> int | None:
        """The tokenizer's end-of-sequence token."""
        return self._tokenizer.eos_token_id

    @property
    def chat_template(self) -> str | None:
        """The Jinja source; the one called `default` where there are several."""
        template = self._tokenizer.chat_template
        return template.get("default") if isinstance(template, dict) else template

    @property
    def chat_templates(self) -> dict[str, str]:
        """The other templates by name, where there are several."""
        template = self._tokenizer.chat_template
        several = template if isinstance(template, dict) else {}
        return {name: source for name, source in several.items() if name != "default"}

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """What the tokenizer calls special: its own, and added tokens marked so."""
        added = self._tokenizer.added_tokens_decoder.items()
        special = frozenset(token_id for token_id, token in added if token.special)
        return special.union(self._tokenizer.all_special_ids)

    @property
    def special_tokens(self) -> dict[str, str]:
        """The tokens that chat templates name, as text."""
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        texts = {name: getattr(self._tokenizer, name, None) for name in names}
        return {name: str(text) for name, text in texts.items() if text is not None}

    @property
    def longest_token(self) -> int:
        """Characters that one token can stand for, at most."""
        if self._backend is None:
            return UNBOUNDED
        return longest_token(self._tokenizer.get_vocab(), _pipeline(self._backend))

    @property
    def longest_text(self) -> int | None:
        """Tokens of the longest text it was made for; None if it does not say."""
        length = cast(Any, self._tokenizer).model_max_length
        return length if length < VERY_LARGE_INTEGER else None

    @property
    def raw(self) -> RawTokenizer | None:
        """The tokenizer of the library tokenizers; None for one that is written in Python."""
        return self._backend

    @property
    def tokenizer_json(self) -> str | None:
        """What its `tokenizer.json` says; None for one that is written in Python."""
        return self._backend.to_str() if self._backend is not None else None

    @property
    def token_ids(self) -> frozenset[int]:
        """Every id that stands for something."""
        return frozenset(self._tokenizer.get_vocab().values())

    @property
    def tokens(self) -> dict[int, str]:
        """How every id is written in the vocabulary."""
        return {token_id: name for name, token_id in self._tokenizer.get_vocab().items()}


def _pipeline(tokenizer: RawTokenizer) -> dict[str, Any]:
    """The parts of a `tokenizer.json` that `longest_token` reads, without its vocabulary."""
    model = tokenizer.model
    parts = {"normalizer": tokenizer.normalizer, "pre_tokenizer": tokenizer.pre_tokenizer}
    return {
        **{name: json.loads(part.__getstate__()) if part else None for name, part in parts.items()},
        "added_tokens": [
            {"lstrip": token.lstrip, "rstrip": token.rstrip}
            for token in tokenizer.get_added_tokens_decoder().values()
        ],
        "model": {
            "type": type(model).__name__,
            "byte_fallback": getattr(model, "byte_fallback", False),
        },
    }


def _check(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"the text is not valid Unicode: {error}") from error


def load_tokenizer(checkpoint: Checkpoint, **arguments: Any) -> Tokenizer:
    """The tokenizer in a model's folder; `arguments` are for transformers."""
    try:
        return Tokenizer(AutoTokenizer.from_pretrained(checkpoint.path, **arguments))
    except Exception as error:
        raise checkpoint.unavailable(f"its tokenizer cannot be read: {error}") from error
