"""The special tokens of a vocabulary, and which of them a completion leaves out of its text."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache

from enginebay.contract.sampling_params import SamplingParams

_REMEMBERED = 32  # sets of marks and stop strings: few formats, and stops that clients repeat


class SpecialTokens:
    """The special tokens of a vocabulary by id, with the text of each one.

    `text` returns the text of a token. It is first called when a format or a stop string needs it.
    """

    def __init__(self, token_ids: Iterable[int], text: Callable[[int], str]) -> None:
        self.token_ids = frozenset(token_ids)
        self._text = text
        self.named_in = lru_cache(_REMEMBERED)(self._named_in)
        self._without = lru_cache(_REMEMBERED)(self._all_but)

    def left_out(self, params: SamplingParams) -> frozenset[int]:
        """The tokens that have no text in a completion with these params."""
        if not params.skip_special_tokens:
            return frozenset()
        return self._without(params.format_marks) if params.format_marks else self.token_ids

    @cached_property
    def _texts(self) -> Mapping[int, str]:
        texts = {token_id: self._text(token_id) for token_id in sorted(self.token_ids)}
        return {token_id: text for token_id, text in texts.items() if text}

    def _named_in(self, texts: tuple[str, ...], *, any_case: bool = False) -> Mapping[int, str]:
        """The tokens that occur in one of these texts, with the text of each token."""
        joined = "\0".join(texts)
        if any_case:
            lower = joined.lower()
            return {i: text for i, text in self._texts.items() if text.lower() in lower}
        return {i: text for i, text in self._texts.items() if text in joined}

    def _all_but(self, marks: tuple[str, ...]) -> frozenset[int]:
        return self.token_ids - self.named_in(marks).keys()
