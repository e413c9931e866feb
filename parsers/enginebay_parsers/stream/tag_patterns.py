"""Tags with holes, in text that arrives in pieces.

A tag is written down as a model writes it, with `{hole}` where something stands that differs and
`{}` where white space may stand: `<arg_key>{key}</arg_key>{}<arg_value>`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

# Bounded, so that what is held back is: each character is looked at a limited number of times.
_SPACE = r"\s{0,99}"
_HOLES = {
    "name": r"""[^\s<>"'`{}()\[\],;=]{1,255}""",
    "function": r"[^\W\d][\w.-]{0,254}",
    "key": r'[^<>"\n]{1,255}',
}
_ANY_HOLE = r'[^<>"]{0,99}'
_HOLE = re.compile(r"\{(\w*)\}")


@dataclass(frozen=True, slots=True)
class Tag:
    """`role`: what it is to who looks for it. `margin`: what may stand in front and belongs to it.

    `followed_by`: the beginning of what must follow it, white space aside; nothing: that
    does not matter. `or_end`: the end of the text may follow too.
    """

    role: str
    text: str
    margin: str = ""
    followed_by: tuple[str, ...] = ()
    or_end: bool = False


class Found(NamedTuple):
    """Which tag stands where; None: what may become one, up to the end of the text."""

    tag: Tag | None
    start: int
    end: int
    holes: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Atom:
    whole: str
    partial: str


class TagPatterns:
    """Finds the first of some tags; where one is the beginning of another, the longer one first."""

    def __init__(self, *tags: Tag) -> None:
        self._tags = tags
        wholes = [f"(?P<tag_{n}>{_whole(tag, n, final=False)})" for n, tag in enumerate(tags)]
        finals = [f"(?P<tag_{n}>{_whole(tag, n, final=True)})" for n, tag in enumerate(tags)]
        partials = [_partial(tag) for tag in tags]
        both = [pattern for pair in zip(wholes, partials, strict=True) for pattern in pair]
        self._open = re.compile("|".join(both))
        self._final = re.compile("|".join([*finals, *partials]))

    def starts(self) -> tuple[str, ...]:
        """What the tags begin with. Only for tags that begin with a text of their own."""
        return tuple(dict.fromkeys(literal_start(tag.text) for tag in self._tags))

    def search(self, text: str, at: int, *, final: bool) -> Found | None:
        """The first one that stands in `text` from `at` on."""
        return self._found((self._final if final else self._open).search(text, at))

    def match(self, text: str, at: int, *, final: bool) -> Found | None:
        """The one that stands right at `at`."""
        return self._found((self._final if final else self._open).match(text, at))

    def _found(self, match: re.Match[str] | None) -> Found | None:
        if match is None:
            return None
        if match.lastgroup is None:
            return Found(None, match.start(), match.end(), {})
        number = match.lastgroup.removeprefix("tag_")
        holes = {
            hole.removesuffix(f"_{number}"): value.strip()
            for hole, value in match.groupdict().items()
            if value is not None and hole != match.lastgroup
        }
        return Found(self._tags[int(number)], match.start(), match.end(), holes)


def literal_start(tag: str) -> str:
    """What a tag begins with, up to its first hole."""
    return _HOLE.split(tag)[0]


def pieces(tag: str) -> list[tuple[str, bool]]:
    """The texts that a tag is made of, and the names of its holes, each with whether it is one."""
    parts = enumerate(_HOLE.split(tag))
    return [(part, bool(n % 2)) for n, part in parts if n % 2 or part]


def fits(hole: str, text: str) -> bool:
    """Whether a text in a hole is read back as it is."""
    return text == text.strip() and re.fullmatch(_HOLES[hole], text) is not None


def _whole(tag: Tag, number: int, *, final: bool) -> str:
    pattern = "".join(
        f"(?P<{hole}_{number}>{atom.whole})" if hole else atom.whole for hole, atom in _atoms(tag)
    )
    if tag.followed_by:
        followers = [re.escape(follower) for follower in tag.followed_by]
        if tag.or_end and final:
            followers.append(r"\Z")
        pattern += f"(?={_SPACE}(?:{'|'.join(followers)}))"
    return pattern


def _partial(tag: Tag) -> str:
    """What at the end of the text may become the tag."""
    atoms = [atom for _, atom in _atoms(tag)]
    if tag.followed_by:
        beginnings = "|".join(_beginnings(follower) for follower in tag.followed_by)
        atoms += [_Atom(_SPACE, _SPACE), _Atom("", f"(?:{beginnings})")]
    ways = []
    before = ""
    for atom in atoms:
        ways.append(before + atom.partial)
        before += atom.whole
    return rf"(?:{'|'.join(ways)})\Z"


def _atoms(tag: Tag) -> Iterator[tuple[str, _Atom]]:
    """The parts of a tag, each with the name of the hole that it is."""
    if tag.margin:
        yield "", _Atom(f"(?:{re.escape(tag.margin)})?", f"(?:{_beginnings(tag.margin)})")
    for n, part in enumerate(_HOLE.split(tag.text)):
        if n % 2 and part:
            hole = _HOLES.get(part, _ANY_HOLE)
            yield part, _Atom(hole, hole)
        elif n % 2:
            yield "", _Atom(_SPACE, _SPACE)
        elif part:
            yield "", _Atom(re.escape(part), f"(?:{_beginnings(part)})")


def _beginnings(text: str) -> str:
    return "|".join(re.escape(text[:length]) for length in range(len(text), 0, -1))
