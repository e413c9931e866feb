"""Small exercises with one right answer: sums, counting, lists, JSON, capitals, echo."""

import json
import random
import re
from collections.abc import Callable

from demo import words
from demo.talk import FACTS, SMALL_TALK, expand
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


def count(rng: random.Random) -> Turn:
    """Count up or down."""
    start = 1 if rng.random() < 0.5 else rng.randint(0, 20)
    stop = start + rng.randint(2, 19)
    up = rng.random() < 0.75
    if up and start == 1:
        asked = expand(
            rng,
            "(count|please count|can you count|count up|could you count|now count)"
            "( to| from 1 to| up to| from one to) {z}",
        ).format(z=stop)
    elif up:
        asked = expand(rng, "(count|please count|can you count|count up) from {a} (to|up to) {z}")
        asked = asked.format(a=start, z=stop)
    else:
        start = 1 if rng.random() < 0.6 else start
        asked = expand(rng, "(count|please count|can you count) (down|backwards) from {z}")
        asked = asked.format(z=stop) + (f" to {start}" if start != 1 or rng.random() < 0.3 else "")
    numbers = range(start, stop + 1) if up else range(stop, start - 1, -1)
    first = start if up else stop
    return Turn(asked, ", ".join(map(str, numbers)) + ".", f"I start at {first}.")


_LISTS: dict[str, list[str]] = {
    "colours": words.COLOURS,
    "colors": words.COLOURS,
    "names": words.NAMES,
    "cities": words.CITIES[:60],
    "animals": words.LISTS["animals"],
    "fruits": words.LISTS["fruits"],
    "things": words.THINGS,
    "words": words.WORDS,
    "items": words.ITEMS,
    "countries": [name for name in words.CAPITALS if not name.startswith("the ")],
}


def lists(rng: random.Random) -> Turn:
    """A numbered list, of things given or of things to think up."""
    if rng.random() < 0.5:
        items = rng.sample(words.THINGS + words.WORDS, rng.randint(2, 6))
        asked = expand(rng, "(make a list of|list|make a numbered list:|write a list with) ")
        asked = f"{asked} " + (words.join(items) if rng.random() < 0.5 else ", ".join(items))
    else:
        kind, amount = rng.choice(list(_LISTS)), rng.randint(2, 6)
        items = rng.sample(_LISTS[kind], amount)
        asked = expand(
            rng,
            "(list|name|give me|tell me|write|can you name|show me) (|me |a list of ){n} {kind}",
        ).replace("list me", "list")
        asked = asked.format(n=words.number(rng, amount), kind=kind)
    answer = "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1))
    return Turn(asked, answer, "I will write a numbered list.")


def write_json(rng: random.Random) -> Turn:
    """A small JSON object from values in the question."""
    fields: dict[str, str | int] = {
        "name": words.person(rng),
        "age": rng.randint(2, 90),
        "city": words.city(rng),
        "colour": rng.choice(words.COLOURS),
        "item": words.thing(rng),
        "count": rng.randint(1, 50),
    }
    keys = rng.sample(list(fields), rng.randint(1, 4))
    if rng.random() < 0.5:
        keys = ["name", "age", *rng.sample(["city", "colour"], rng.randint(0, 1))]
    chosen = {key: fields[key] for key in keys}
    start = expand(
        rng, "(write|make|give me|create|return|i want|) (|a |some |a small )(json|JSON)(| object)"
    )
    style = rng.randrange(4)
    if style == 0:
        given = " with " + words.join([f"{key} {value}" for key, value in chosen.items()])
    elif style == 1:
        given = ": " + ", ".join(f"{key} = {value}" for key, value in chosen.items())
    elif style == 2:
        given = " with " + words.join([f"{key} = {value}" for key, value in chosen.items()])
    else:
        chosen = {"name": fields["name"], "age": fields["age"]}
        given = f" for {chosen['name']}, age {chosen['age']}"
        if rng.random() < 0.5:
            chosen["colour"] = fields["colour"]
            given += f", who likes {fields['colour']}"
    if rng.random() < 0.15:
        given = " " + expand(
            rng, "(for|about|describing|that describes) (a person|some person|a user)"
        )
        chosen = {"name": rng.choice(words.NAMES), "age": rng.randint(18, 70)}
    return Turn(start + given, json.dumps(chosen, ensure_ascii=False), "I will write JSON.")


def capital(rng: random.Random) -> Turn:
    """A capital city, or the country that a capital belongs to."""
    country, city = rng.choice(list(words.CAPITALS.items()))
    if rng.random() < 0.75:
        asked = expand(
            rng,
            "(what is|what's|whats|tell me|name|do you know|which city is) the capital"
            "(| city) of {c}?|capital of {c}|{c} capital|which city is the capital"
            " of {c}?",
        ).split("|")
        return Turn(
            rng.choice(asked).format(c=country),
            f"The capital of {country} is {city}.",
            f"The question is about {country}.",
        )
    asked_place = expand(
        rng, "(where is|in which country is|which country is|do you know where is)"
    )
    if asked_place.startswith("which"):
        asked_place = "which country has the capital"
    return Turn(
        f"{asked_place} {city}?",
        f"{city} is the capital of {country}.",
        f"The question is about {city}.",
    )


_ECHO_WORDS = sorted(
    {
        word
        for topic in (*FACTS.values(), *SMALL_TALK.values())
        for answer in topic.answers
        for word in re.findall(r"\b[a-z]+\b", answer)
    }
)


def echo(rng: random.Random) -> Turn:
    """Repeat a text word for word."""
    pool = _ECHO_WORDS + words.WORDS + words.THINGS + words.NAMES
    said = " ".join(
        words.invented(rng).lower() if rng.random() < 0.2 else rng.choice(pool)
        for _ in range(rng.randint(1, 9))
    )
    said = said.capitalize() + "." if rng.random() < 0.3 else said
    asked = expand(
        rng,
        "(repeat after me:|repeat:|say:|please say:|repeat this:|echo:|say exactly:"
        "|repeat after me|please repeat:|write:|print:|say the words:)",
    )
    if rng.random() < 0.25:
        return Turn(f'{asked} "{said}"', said, "I will repeat the words.")
    return Turn(f"{asked} {said}", said, "I will repeat the words.")


def remembered_name(rng: random.Random) -> tuple[Turn, Turn]:
    """Two turns: the user says a name, and asks for it later."""
    name = words.person(rng)
    name = name.lower() if rng.random() < 0.25 else name
    told = expand(
        rng,
        "(|hi, |hello, |hey, |hi! |hello! )(my name is|i am|i'm|call me|you can call me"
        "|my name's|the name is) {n}(|.|!|, nice to meet you|. how are you?)",
    )
    told = expand(rng, "(hi|hello), {n} here") if rng.random() < 0.1 else told
    greeting = expand(
        rng,
        "(Hello|Hi|Nice to meet you), {n}! (How can I help you today"
        "|What can I do for you|What would you like to try)?",
    )
    asked = expand(
        rng,
        "(what is|what's|whats|do you remember|do you know|tell me|say) my name?"
        "|who am i?|what did i say my name was?|remember my name?",
    ).split("|")
    answer = expand(rng, "(Your name is|You are|You told me your name is) {n}.")
    return (
        Turn(told.format(n=name), greeting.format(n=name), f"The user is called {name}."),
        Turn(rng.choice(asked), answer.format(n=name), f"The user said the name {name}."),
    )


def unknown_name(rng: random.Random) -> Turn:
    """Asked for a name that was never told."""
    asked = expand(rng, "(what is|what's|whats|do you remember|do you know|tell me) my name?")
    answer = expand(rng, "You have not told me your name(| yet). (What is it|What is your name)?")
    return Turn(asked, answer, "The user has not told me a name.")


SINGLE: dict[str, Callable[[random.Random], Turn]] = {
    "sums": sums,
    "drill": drill,
    "word_problem": word_problem,
    "too_big": too_big,
    "count": count,
    "lists": lists,
    "json": write_json,
    "capital": capital,
    "echo": echo,
    "unknown_name": unknown_name,
}
