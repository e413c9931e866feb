"""Texts of servers that cut them between the halves of a surrogate pair."""

from collections.abc import Hashable


def whole(text: str) -> str:
    """`text` with halves joined; one that stands alone, which no JSON can hold, is replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Characters:
    """Keeps half a character at the end of a text until the next text of the same stream comes."""

    def __init__(self) -> None:
        self._halves: dict[Hashable, str] = {}

    def of(self, stream: Hashable, text: str) -> str:
        """What `text` adds to its stream in whole characters."""
        text = self._halves.pop(stream, "") + text
        if "\ud800" <= text[-1:] <= "\udbff":
            self._halves[stream], text = text[-1], text[:-1]
        return whole(text)
