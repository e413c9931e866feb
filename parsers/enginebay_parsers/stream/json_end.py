"""The end of a value of JSON that stands between tags, of which some may be in its strings."""

from enginebay import is_json
from enginebay_parsers.stream.json_scanner import JsonScanner
from enginebay_parsers.stream.tag_patterns import Found, TagPatterns


class JsonEnd:
    """Finds the tag that ends a value: the first one that stands in no string.

    Where what is in front of that one is no JSON, or none comes, it is the first one of all.
    """

    def __init__(self, tags: TagPatterns) -> None:
        self._tags = tags
        self._scanner = JsonScanner()
        self._followed = 0
        self._first: tuple[int, int] | None = None

    def find(self, text: str, at: int, *, final: bool) -> tuple[int, int] | None:
        """Where the end stands in `text`, of which the value begins at `at`.

        None where it is not certain yet. Where there is none, it is empty and at the end of `text`.
        """
        while True:
            found = self._tags.search(text, at + self._followed, final=final)
            if found is None or found.tag is None:
                if final:
                    return self._from(at) or (len(text), len(text))
                self._follow(text, at, len(text) if found is None else found.start)
                return None
            self._follow(text, at, found.start)
            if not self._scanner.in_string:
                if self._first is None or is_json(text[at : found.start]):
                    return found.start, found.end
                return self._from(at)
            self._skip(found, text, at)

    def _from(self, at: int) -> tuple[int, int] | None:
        return self._first and (at + self._first[0], at + self._first[1])

    def _skip(self, found: Found, text: str, at: int) -> None:
        self._first = self._first or (found.start - at, found.end - at)
        self._follow(text, at, max(found.end, found.start + 1))

    def _follow(self, text: str, at: int, end: int) -> None:
        self._scanner.feed(text[at + self._followed : end], 0, [])
        self._followed = end - at
