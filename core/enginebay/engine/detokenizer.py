"""Token ids to whole characters, one token at a time."""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """Text of one growing completion.

    A token may hold a part of a character, and a tokenizer may write a token differently after
    another (a leading space), so the newest tokens are decoded together with a few before them and
    only the difference counts. Text that ends in U+FFFD, the mark of an unfinished character, is
    held back until the character is whole.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._token_ids: list[int] = []
        self._emitted = 0  # tokens whose text is out
        self._context = 0  # where the tokens decoded along with the next ones begin

    def feed(self, token_id: int) -> str:
        """The characters this token completes."""
        self._token_ids.append(token_id)
        text = self._pending()
        if text.endswith("\ufffd"):
            return ""
        self._context, self._emitted = self._emitted, len(self._token_ids)
        return text

    def finish(self) -> str:
        """The remains of an incomplete character."""
        text = self._pending()
        self._context = self._emitted = len(self._token_ids)
        return text

    def _pending(self) -> str:
        if self._emitted == len(self._token_ids):
            return ""
        before = self._decode(self._token_ids[self._context : self._emitted])
        return self._decode(self._token_ids[self._context :])[len(before) :]
