"""Small exercises with one right answer: sums, counting, lists, JSON, capitals, echo."""

import json
import random
import re
from collections.abc import Callable

from demo import words
from demo.sums import drill, sums, too_big, word_problem
from demo.talk import FACTS, SMALL_TALK, expand
from demo.turns import Turn


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
