"""What the demo model can talk about: small talk, facts about Enginebay, and what it cannot answer.

The wordings are in `topics.txt`.
"""

import random
import re
from dataclasses import dataclass, field
from pathlib import Path

from demo import words

_CHOICE = re.compile(r"\(([^()]*\|[^()]*)\)")
_HEADING = re.compile(r"\[(.+): (.+)\]")
_ABILITIES = (
    "say hello",
    "talk about Enginebay",
    "explain how to start Enginebay",
    "do small sums",
    "count",
    "name capitals",
    "tell short stories",
    "write a little JSON",
    "make lists",
    "call tools",
)


def expand(rng: random.Random, pattern: str) -> str:
    """Choose one alternative in every `(a|b)` of the pattern, innermost first."""
    while found := _CHOICE.search(pattern):
        chosen = rng.choice(found.group(1).split("|"))
        pattern = pattern[: found.start()] + chosen + pattern[found.end() :]
    return pattern.replace("  ", " ").strip()


@dataclass(slots=True)
class Topic:
    """Question patterns, and answer patterns that fit any of them."""

    questions: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)


def _read_topics(path: Path) -> dict[str, dict[str, Topic]]:
    kinds: dict[str, dict[str, Topic]] = {}
    topic = Topic()
    for line in path.read_text(encoding="utf-8").splitlines():
        if heading := _HEADING.fullmatch(line):
            kind, name = heading.groups()
            topic = kinds.setdefault(kind, {}).setdefault(name, Topic())
        elif line.startswith("? "):
            topic.questions.append(line[2:])
        elif line.startswith("! "):
            topic.answers.append(line[2:])
    return kinds


_TOPICS = _read_topics(Path(__file__).with_name("topics.txt"))
SMALL_TALK = _TOPICS["small talk"]
FACTS = _TOPICS["facts"]
_UNKNOWN = _TOPICS["unknown"]["unknown"]


def unknown_question(rng: random.Random) -> str:
    """A question that the model is not meant to answer."""
    return expand(rng, rng.choice(_UNKNOWN.questions)).format(
        n=words.thing(rng) if rng.random() < 0.4 else rng.choice(words.WORDS),
        m=rng.choice(words.WORDS),
        a=rng.choice(words.COLOURS + words.WORDS[:60]),
        p=words.person(rng),
        q=words.invented(rng),
    )


def unknown_answer(rng: random.Random) -> str:
    """An honest 'I cannot', with three things that it can do."""
    x, y, z = rng.sample(_ABILITIES, 3)
    return expand(rng, rng.choice(_UNKNOWN.answers)).format(x=x, y=y, z=z)
