"""Word lists from `words.txt`, and small random helpers that the conversation generator uses."""

import random
from collections.abc import Sequence
from pathlib import Path


def _read_lists(path: Path) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = {}
    words: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            words = lists.setdefault(line.strip("[]"), [])
        elif not line.startswith("#"):
            words += [word.strip() for word in line.split(",") if word.strip()]
    return lists


LISTS = _read_lists(Path(__file__).with_name("words.txt"))
CAPITALS = dict(pair.split(": ") for pair in LISTS["capitals"])
CITIES = [*sorted(set(CAPITALS.values())), *LISTS["more cities"]]
NAMES = LISTS["names"]
THINGS = LISTS["things"]
ITEMS = LISTS["items"]
COLOURS = LISTS["colours"]
WORDS = LISTS["words"]
NUMBER_WORDS = LISTS["numbers"]
_SYLLABLES = LISTS["syllables"]
_ONSETS = LISTS["onsets"]
_CODAS = ["", "", *LISTS["codas"]]
_CITY_ENDINGS = LISTS["city endings"]


def invented(rng: random.Random) -> str:
    """A made-up proper name: it can only be copied, never remembered."""
    if rng.random() < 0.5:
        parts = [rng.choice(_ONSETS) + rng.choice("aeiou") + rng.choice(_CODAS) for _ in "12"]
        return "".join(parts[: rng.choice((1, 2, 2))]).capitalize()
    return "".join(rng.choices(_SYLLABLES, k=rng.choice((2, 2, 3)))).capitalize()


def city(rng: random.Random) -> str:
    """A real city, or an invented one."""
    if rng.random() < 0.6:
        return rng.choice(CITIES)
    name = invented(rng) + (rng.choice(_CITY_ENDINGS) if rng.random() < 0.6 else "")
    return (
        f"{rng.choice(('New', 'Old', 'Port', 'North', 'San'))} {name}"
        if rng.random() < 0.08
        else name
    )


def person(rng: random.Random) -> str:
    """A first name, or an invented one."""
    return rng.choice(NAMES) if rng.random() < 0.7 else invented(rng)


def thing(rng: random.Random) -> str:
    """A noun to write about."""
    return rng.choice(THINGS) if rng.random() < 0.75 else rng.choice(WORDS)


def join(parts: Sequence[str]) -> str:
    """'a', 'a and b' or 'a, b and c'."""
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else parts[0]


def number(rng: random.Random, value: int) -> str:
    """Mostly digits, sometimes a word."""
    return NUMBER_WORDS[value] if 0 <= value <= 20 and rng.random() < 0.12 else str(value)
