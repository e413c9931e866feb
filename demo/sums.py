"""Arithmetic: sums, word problems, and what is too big for the model."""

import random

from demo import words
from demo.talk import expand
from demo.turns import Turn

_LIMIT = 20


def _value(a: int, op: str, b: int) -> int:
    return {"+": a + b, "-": a - b, "*": a * b}[op]


def _steps(a: int, op: str, b: int) -> tuple[str, int]:
    """The working for one sum, in steps that a small model can learn, and the result."""
    result = _value(a, op, b)
    said = f"{a} {op} {b} = {result}."
    tens, ones = b // 10 * 10, b % 10
    if op == "*" or result < 0 or not tens or not ones:
        return said, result
    middle = _value(a, op, tens)
    return f"{a} {op} {tens} = {middle}, {middle} {op} {ones} = {result}. {said}", result


def _operands(rng: random.Random, op: str) -> tuple[int, int]:
    if op == "*":
        return rng.randint(0, 12), rng.randint(0, 12)
    top = _LIMIT if rng.random() < 0.85 else 99
    a, b = rng.randint(0, top), rng.randint(0, top)
    if op == "-" and a < b and rng.random() < 0.85:
        a, b = b, a
    return a, b


_WORK_OUT = "(what is|what's|whats|calculate|compute|how much is|work out|tell me|solve|)"
_SUM_ASK = {
    "+": (
        f"{_WORK_OUT} {{a}}( + |+| plus | + ){{b}}?",
        "(add|please add) {a} and {b}",
        "what (is the sum of|do i get if i add|do you get when you add) {a} and {b}?",
        "(hi|hello|hey), what is {a} + {b}?",
        "{a}(+| + ){b}(=| =|= ?| = ?|)",
    ),
    "-": (
        f"{_WORK_OUT} {{a}}( - |-| minus | - ){{b}}?",
        "(subtract|take|take away) {b} from {a}",
        "what (is the difference between {a} and {b}|is {a} take away {b})?",
        "{a}(-| - ){b}(=| =|= ?| = ?|)",
    ),
    "*": (
        f"{_WORK_OUT} {{a}}( * |*| times | x | * | multiplied by ){{b}}?",
        "(multiply|please multiply) {a} (by|and|with) {b}",
        "what is the product of {a} and {b}?",
        "{a}(*| * | x ){b}(=| =|= ?| = ?|)",
    ),
}


def sums(rng: random.Random) -> Turn:
    """A bare sum, with the working as the thought."""
    op = rng.choice("++--*")
    a, b = _operands(rng, op)
    asked = expand(rng, rng.choice(_SUM_ASK[op]))
    asked = asked.format(a=words.number(rng, a), b=words.number(rng, b))
    working, result = _steps(a, op, b)
    return Turn(asked, f"{a} {op} {b} = {result}.", working, thinks=True)


_MORE = (
    "{p} has {a} {t} and (gets|buys|finds|receives) {b} more. How many {t} does {p} have(| now)?",
    "I have {a} {t} and (get|buy|find) {b} more. How many {t} do I have(| now| in total)?",
    "There are {a} {t} on the table. {p} adds {b}. How many {t} are there(| now)?",
    "{p} has {a} {t} and {q} has {b} {t}. How many {t} do they have together?",
)
_LESS = (
    "{p} has {a} {t} and (gives away|loses|eats|sells) {b}."
    " How many {t} (are left|does {p} have left|remain)?",
    "I have {a} {t} and (give away|lose|eat|sell) {b}."
    " How many {t} (are left|do I have left|do I have now)?",
    "There are {a} {t} in a (box|basket|bag). {p} takes {b}. How many {t} are left?",
)
_TIMES = (
    "There are {a} (boxes|bags|baskets) with {b} {t} each. How many {t} are there(| in total)?",
    "{p} buys {a} (boxes|bags|packs) of {b} {t}. How many {t} does {p} have?",
    "I have {a} (boxes|bags) with {b} {t} in each. How many {t} do I have?",
)


def word_problem(rng: random.Random) -> Turn:
    """A sum told as a small story."""
    op, patterns = rng.choice((("+", _MORE), ("-", _LESS), ("*", _TIMES)))
    a, b = _operands(rng, op)
    a, b = (min(a, 40), min(b, 40)) if op != "*" else (max(a, 2), max(b, 2))
    a, b = (max(a, b), min(a, b)) if op == "-" else (a, b)
    item, first, other = rng.choice(words.ITEMS), words.person(rng), words.person(rng)
    pattern = rng.choice(patterns).replace("{p}", first).replace("{q}", other)
    asked = expand(rng, pattern.replace("{t}", item)).format(
        a=words.number(rng, a), b=words.number(rng, b)
    )
    working, result = _steps(a, op, b)
    return Turn(
        asked,
        f"{a} {op} {b} = {result}, so the answer is {result} {item}.",
        f"This is {a} {op} {b}. {working}",
        thinks=True,
    )


def drill(rng: random.Random) -> Turn:
    """A list of sums: many facts in one answer."""
    lines = []
    for _ in range(rng.randint(10, 22)):
        op = rng.choice("++--*")
        a, b = _operands(rng, op)
        lines.append(f"{a} {op} {b} = {_value(a, op, b)}.")
    asked = expand(
        rng, "(write|show me|give me|show|list) (some|a few|many|more|easy) (sums|calculations)"
    )
    return Turn(asked, "\n".join(lines), "I will write some sums.")


def too_big(rng: random.Random) -> Turn:
    """A sum that is out of reach: say so."""
    a, b = rng.randint(100, 99999), rng.randint(2, 99999)
    if rng.random() < 0.5:
        a, b = b, a
    op = rng.choice(("+", "-", "*", "/", "plus", "times", "minus", "divided by"))
    if op in ("/", "divided by") and rng.random() < 0.7:
        a, b = rng.randint(1, 40), rng.randint(1, 20)
    answer = expand(
        rng, "That is too hard for me. I only do small sums(, for example 7 + 5| like 7 + 5)."
    )
    asked = expand(rng, "(what is|calculate|how much is|) ").strip()
    return Turn(f"{asked} {a} {op} {b}".strip(), answer, "This is too hard for me.")
