"""Texts that a completion must not have: which of its last tokens have to be taken back."""

from collections.abc import Iterable

from enginebay.engine.stop_strings import longest_overlap


class BannedStrings:
    """Looks for banned strings in one completion, in upper or lower case, token by token.

    `uncertain`: how many of the last tokens may still have to be taken back, since a string may
    begin in them, or a character has begun that is not complete, or either would be so if some of
    these were taken back. `read`: characters so far.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self.read = 0
        self._strings = [_lower(each) for each in strings]
        self._text = ""  # of the uncertain tokens
        self._lengths: list[int] = []  # the characters of each of them
        self._stay: list[bool] = []  # which of them had to come
        self._firsts: list[int] = []  # in which a string might begin when each was the last one

    @property
    def uncertain(self) -> int:
        return len(self._lengths)

    def add(self, text: str, unseen: str = "", *, stays: bool = False) -> int:
        """There is one more token, which completes these characters. `stays`: no other can come.

        `unseen`: the text of a token that is left out of the completion's text.

        Returns how many of the last tokens have to be taken back: those from the one in which the
        first banned string begins, or from the first one behind it for which there may be another.
        This object is of no more use then. 0 also for a string that has to come.
        """
        self.read += len(text)
        text += unseen
        self._text += _lower(text)
        self._lengths.append(len(text))
        self._stay.append(stays)
        found = [at for each in self._strings if (at := self._text.find(each)) >= 0]
        if found:
            first = self._token_at(min(found))
            free = (token for token in range(first, len(self._stay)) if not self._stay[token])
            if back := len(self._stay) - next(free, len(self._stay)):
                return back
            self.settle()
            return 0
        begins = max((longest_overlap(self._text, each) for each in self._strings), default=0)
        self._firsts.append(self._token_at(len(self._text) - begins))
        certain = self._firsts[-1]
        while certain and (first := min(self._firsts[certain - 1 :])) < certain:
            certain = first
        self._text = self._text[sum(self._lengths[:certain]) :]
        del self._lengths[:certain], self._stay[:certain]
        self._firsts = [first - certain for first in self._firsts[certain:]]
        return 0

    def settle(self) -> None:
        """All tokens stay, whatever they may be the beginning of."""
        self._text = ""
        self._lengths.clear()
        self._stay.clear()
        self._firsts.clear()

    def _token_at(self, place: int) -> int:
        """The token with the character there, or the first one that began it."""
        token = end = 0
        for number, length in enumerate(self._lengths, start=1):
            end += length
            if length and end <= place:
                token = number
        return token


def _lower(text: str) -> str:
    """In lower case, with as many characters."""
    return "".join(low if len(low := each.lower()) == 1 else each for each in text)
