"""Stories, long stories and poems about a thing: many different answers to one question."""

import random
from collections.abc import Callable

from demo import words
from demo.talk import expand
from demo.turns import Turn

_OPENINGS = (
    "Once upon a time there was a {c} {t} (near|not far from) {city}.",
    "(Long ago|Many years ago), a {c} {t} (came to|was seen in|appeared in) {city}.",
    "In a small house in {city}, {p} kept a {c} {t}.",
    "There was once a {t} that nobody in {city} could explain.",
)
_MIDDLES = (
    "Every (morning|evening), {p} went to look at it.",
    "One (day|night|morning), the {t} (was gone|began to shine|started to sing|turned {c}).",
    "{p} (asked|told) everybody in the (village|street|market) about the {t}.",
    "It was (raining|snowing|dark|very quiet), and the (road|river|forest) was"
    " (empty|full of fog).",
    "An old (woman|man|sailor|teacher) gave {p} a {c} (key|map|letter|lamp).",
    "{p} and {q} (followed|looked for|talked about) the {t} for (three days|a whole week|hours).",
    "Behind the (hill|house|old tower) they found a (door|box|path) that nobody had seen before.",
    "The (wind|moon|rain) (whispered|seemed to say|sang) the name of the {t}.",
    "{q} was (afraid|curious|tired), but {p} (laughed|smiled|did not stop).",
    "In the (kitchen|garden|station) there was a smell of (bread|smoke|apples|salt).",
    "A (fox|crow|cat) sat on the (wall|roof|gate) and watched them.",
    "They (crossed|left|reached) the (bridge|forest|harbour) before the sun came up.",
    "Nobody (knew|could say) where the {t} had come from.",
    "That night {p} dreamed of a (sea|garden|city) made of (glass|paper|light).",
)
_ENDINGS = (
    "In the end, {p} took the {t} home, and everybody was happy.",
    "Since that day, people in {city} tell the story of the {t}.",
    "And so the {t} found a new home with {p}.",
    "Then they all had (tea|supper|cake), and the {t} was safe.",
)
_VERSES = (
    "The {t} is {c}, the night is (deep|long),",
    "and far away I hear a song,",
    "a {c} (light|star|cloud) is (passing|shining) by,",
    "the {t} is (sleeping|waiting) under the sky.",
)


def _write(rng: random.Random, subject: str, middles: int) -> str:
    names = {
        "t": subject,
        "p": rng.choice(words.NAMES[:40]),
        "q": rng.choice(words.NAMES[40:]),
        "city": rng.choice(words.CITIES[:60]),
    }
    patterns = [
        rng.choice(_OPENINGS),
        *rng.sample(_MIDDLES, middles),
        rng.choice(_ENDINGS),
    ]
    return " ".join(
        expand(rng, pattern).format(c=rng.choice(words.COLOURS), **names) for pattern in patterns
    )


def _subject(rng: random.Random) -> tuple[str, str]:
    """The thing to write about, and how the question names it ('' when it does not)."""
    subject = words.thing(rng)
    if rng.random() < 0.2:
        return subject, ""
    article = "an" if subject[0] in "aeiou" else "a"
    return subject, f" about {rng.choice((article, article, 'the'))} {subject}"


def story(rng: random.Random) -> Turn:
    """A short story."""
    subject, about = _subject(rng)
    asked = expand(
        rng,
        "(tell me|tell|write|write me|give me|can you tell me|i want|) (a|a short|a little"
        "|a small|some|a nice) (story|tale|fairy tale)",
    )
    return Turn(
        asked + about,
        _write(rng, subject, rng.randint(1, 2)),
        f"I will tell a story about the {subject}.",
    )


def long_story(rng: random.Random) -> Turn:
    """A story of roughly 150 to 200 tokens."""
    subject, about = _subject(rng)
    asked = expand(
        rng,
        "(tell me|write|write me|give me|can you tell me|i want) (a long|a very long"
        "|a longer|a really long|another long|a long long) (story|tale)",
    )
    return Turn(
        asked + about,
        _write(rng, subject, rng.randint(9, 11)),
        f"I will tell a long story about the {subject}.",
    )


def poem(rng: random.Random) -> Turn:
    """Four lines."""
    subject, about = _subject(rng)
    asked = expand(
        rng, "(write|write me|tell me|give me|make) (a|a short|a little) (poem|rhyme|verse)"
    )
    lines = "\n".join(
        expand(rng, v).format(t=subject, c=rng.choice(words.COLOURS)) for v in _VERSES
    )
    return Turn(asked + about, lines, f"I will write a poem about the {subject}.")


SINGLE: dict[str, Callable[[random.Random], Turn]] = {
    "story": story,
    "long_story": long_story,
    "poem": poem,
}
