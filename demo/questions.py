"""Questions about a picture, and their answers."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from demo.pictures import NAMES, NUMBERS, SHAPES, Thing
from demo.talk import expand

COUNTS = ("nothing", "one", "two", "three")
Things = tuple[Thing, ...]
Made = tuple[str, str]
"""A pattern of questions, and the answer to all of them."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about a picture, and the only right answer."""

    kind: str
    text: str
    answer: str
    thought: str
    """What to think before the answer, if thinking is asked for."""


def _an(word: str) -> str:
    return ("an " if word[0] in "aeiou" else "a ") + word


def _plural(kind: str) -> str:
    return kind + ("es" if kind.endswith("s") else "s")


def _full(thing: Thing) -> str:
    if thing.kind in NUMBERS:
        return f"the number {thing.kind} in {thing.colour}"
    return _an(f"{thing.colour} {thing.kind}")


def listed(things: Things) -> str:
    """All things as one phrase: `a red circle and the number 7 in blue`."""
    *rest, last = [_full(thing) for thing in things] or ["no shape and no number"]
    return f"{', '.join(rest)} and {last}" if rest else last


def _unique(things: Things) -> list[Thing]:
    nouns = [thing.noun for thing in things]
    return [thing for thing in things if nouns.count(thing.noun) == 1]


def _describe(rng: random.Random, things: Things) -> Made:
    return (
        "(What is this|What's this|What do you see|What can you see here|What is shown here)?"
        "|(What is|What's) (in|on) (this|the) {picture}?|What does (this|the) {picture} show?"
        "|Describe (this|the) {picture}.|What do you see (in|on) (this|the) {picture}?"
        "|Tell me what you see.|Caption this {picture}.|Describe this.|What's here?",
        f"I see {listed(things)}.",
    )


def _colour(rng: random.Random, things: Things) -> Made | None:
    if len(things) != 1:
        return None
    noun = things[0].noun
    if rng.random() < 0.4:
        return (
            f"(What|Which) {{colour}} is the {noun}( in the {{picture}}|)?"
            f"|What is the {{colour}} of the {noun}?|Tell me the {{colour}} of the {noun}.",
            f"The {noun} is {things[0].colour}.",
        )
    return (
        "(What|Which) {colour} is (this|it)?|What is the {colour} of (it|this)?"
        "|(What|Which) {colour} do you see?|Tell me the {colour}.|Name the {colour}.",
        f"It is {things[0].colour}.",
    )


def _shape(rng: random.Random, things: Things) -> Made | None:
    if len(things) != 1 or things[0].kind not in SHAPES:
        return None
    return (
        "(What|Which) shape is (this|it)?|(What|Which) shape is in (the|this) {picture}?"
        "|(What|Which) shape do you see?|(What|Which) shape does the {picture} show?"
        "|Name the shape.|What is the shape?",
        f"It is {_an(things[0].kind)}.",
    )


def _number(rng: random.Random, things: Things) -> Made | None:
    if len(things) != 1 or things[0].kind not in NUMBERS:
        return None
    return (
        "(What|Which) (number|digit) is (this|it)?|(Read|Name) the (number|digit)."
        "|(What|Which) (number|digit) is in (the|this) {picture}?"
        "|(What|Which) (number|digit) (do you see|does the {picture} show)?",
        f"It is the number {things[0].kind}.",
    )


def _count(rng: random.Random, things: Things) -> Made:
    what = rng.choice(("things", "objects"))
    return (
        f"How many {what} are (there|in (the|this) {{picture}})?|How many {what} do you see?"
        f"|How many {what} (can you see|does the {{picture}} show)?|Count the {what}.",
        f"There {'are' if len(things) > 1 else 'is'} {COUNTS[len(things)]}.",
    )


def _is_there(rng: random.Random, things: Things) -> Made:
    """It says what there is, also where it is asked how many of a shape there are."""
    kind = rng.choice(things).kind if things and rng.random() < 0.5 else rng.choice(SHAPES)
    what = f"the number {kind}" if kind in NUMBERS else _an(kind)
    return (
        f"Is there {what}( in (the|this) {{picture}}|)?|(Do|Can) you see {what}( here|)?"
        f"|Is {what} in (the|this) {{picture}}?|Does the {{picture}} show {what}?"
        f"|How many {_plural(kind)} (are there|do you see|are in the {{picture}})?",
        f"I see {listed(things)}.",
    )


def _is_it(rng: random.Random, things: Things) -> Made | None:
    """It says what colour it is."""
    if not (unique := _unique(things)):
        return None
    thing = rng.choice(unique)
    wanted = thing.colour if rng.random() < 0.45 else rng.choice(NAMES)
    if len(things) > 1 or rng.random() < 0.5:
        return f"Is the {thing.noun} {wanted}( or not|)?", f"The {thing.noun} is {thing.colour}."
    return f"Is (it|this) {wanted}( or not|)?", f"It is {thing.colour}."


def _colour_of(rng: random.Random, things: Things) -> Made | None:
    if len(things) < 2 or not (unique := _unique(things)):
        return None
    thing = rng.choice(unique)
    return (
        f"(What|Which) {{colour}} is the {thing.noun}( in the {{picture}}|)?"
        f"|What is the {{colour}} of the {thing.noun}?|Tell me the {{colour}} of the {thing.noun}.",
        f"The {thing.noun} is {thing.colour}.",
    )


def _unknown(rng: random.Random, things: Things) -> Made:
    """What it cannot know from a picture."""
    return (
        "(Who is this|Who is (in|on) (the|this) {picture}|Where was this taken"
        "|When was this (taken|made)|Who (made|took|drew) this( {picture}|)"
        "|What is (the person|she|he) (doing|wearing|holding|thinking)"
        "|What (animal|kind of dog|car|breed|plant|bird|building|food) is this"
        "|How (old|tall|heavy) is (this|she|he)|What time is it in (the|this) {picture}"
        "|Is this (a cat|a dog|a person|real|art|a photo of a city)|What is the weather like here"
        "|What does the (text|sign|label) say|(Read|Translate) the text"
        "|Where is (it|the circle|the square|the triangle|the star|the cross|the heart|the number)"
        "|How (big|large) is (it|this|the {picture}))?",
        "I cannot tell. In pictures I only know simple shapes, numbers and their colours.",
    )


_KINDS: dict[str, tuple[float, Callable[[random.Random, Things], Made | None]]] = {
    "describe": (3, _describe),
    "colour": (2, _colour),
    "shape": (2, _shape),
    "number": (2, _number),
    "count": (2, _count),
    "is there": (1.5, _is_there),
    "is it": (1.5, _is_it),
    "colour of": (2, _colour_of),
    "unknown": (0.5, _unknown),
}


def ask(rng: random.Random, things: Things) -> Question:
    """A question that these things have one answer to."""
    weights = [weight for weight, _ in _KINDS.values()]
    while True:
        kind = rng.choices(list(_KINDS), weights)[0]
        if made := _KINDS[kind][1](rng, things):
            pattern, answer = made
            text = expand(rng, f"({pattern})").format(
                picture=rng.choice(("picture", "image", "picture", "image", "photo")),
                colour=rng.choice(("colour", "color")),
            )
            return Question(kind, text.strip("()"), answer, f"I see {listed(things)}.")
