"""Prompts for the evaluation; the plain ones are in `cases.txt`.

Written by hand; the shortest of them are also made by the generator.
"""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from demo.turns import Json


@dataclass(frozen=True, slots=True)
class Case:
    """A chat, and a pattern that the whole answer has to contain."""

    skill: str
    messages: list[Json]
    expected: str
    tools: list[Json] = field(default_factory=list)
    enable_thinking: bool | None = None

    def passes(self, answer: str, finished: bool) -> bool:
        """Whether the answer is as expected and ended by itself."""
        return finished and re.search(self.expected, answer, re.IGNORECASE | re.DOTALL) is not None


def chat(*texts: str) -> list[Json]:
    """User and assistant in turn."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def function(name: str, key: str = "city", about: str = "", **extra: Json) -> Json:
    """A tool with one required argument."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string"}, **extra},
                "required": [key],
            },
        },
    }


WEATHER = function("get_weather", about="Get the current weather for a city")
TIME = function("get_time", "location", "Current local time")
POPULATION = function("lookup_population", "place", "How many people live in a place")
UNIT: Json = {"type": "string", "enum": ["celsius", "fahrenheit"]}
WITH_UNIT = function("current_weather", "location", "Weather now", unit=UNIT)


def _simple(path: Path) -> Iterator[Case]:
    skill = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            skill = line.strip("[]")
        elif " => " in line:
            text, expected = line.split(" => ")
            yield Case(skill, chat(text), expected)


def _conversations() -> Iterator[Case]:
    for name in ("Maria", "bob", "Jolanta", "Vexo"):
        hello = chat(f"Hi, I'm {name}", f"Hello, {name}! How can I help you today?")
        yield Case("conversation", [*hello, *chat("What is my name?")], name)
        yield Case(
            "conversation",
            [*hello, *chat("what is 2 + 2?", "2 + 2 = 4."), *chat("do you remember my name?")],
            name,
        )
        yield Case("conversation", chat(f"my name is {name}"), name)
    yield Case("conversation", chat("what's my name?"), "not told")
    yield Case(
        "conversation",
        chat("hi", "Hello! How can I help you today?", "thanks"),
        "welcome|glad|happy|pleasure",
    )
    yield Case(
        "conversation",
        chat("What is Enginebay?", "Enginebay is a server.", "and how do I start it?"),
        "enginebay serve",
    )
    system: Json = {"role": "system", "content": "You are Zelda, a friendly assistant."}
    yield Case("conversation", [system, *chat("Who are you?")], "Zelda")


def _sums() -> Iterator[Case]:
    rng = random.Random(99)
    for _ in range(60):
        op = rng.choice("+-*")
        a, b = rng.randint(0, 20), rng.randint(0, 20)
        if op == "*":
            a, b = min(a, 12), min(b, 12)
        if op == "-":
            a, b = max(a, b), min(a, b)
        answer = {"+": a + b, "-": a - b, "*": a * b}[op]
        ask = rng.choice(
            ("What is {}?", "{}", "what's {}", "Calculate {}.", "hey, how much is {}?")
        )
        question = chat(ask.format(f"{a} {op} {b}"))
        done = rf"{re.escape(f'{a} {op} {b}')} = {answer}\.$"
        yield Case("sums, by itself", question, rf"^<think>\n.+\n</think>\n\n{done}")
        yield Case("sums, thinking on", question, rf"^(?!<think>).+\n</think>\n\n{done}", [], True)
        yield Case("sums, thinking off", question, f"^{done}", [], False)
    for text, answer in (
        ("I have 3 apples and buy 4 more. How many apples do I have?", 7),
        ("Tom has 9 books and gives away 5. How many are left?", 4),
        ("There are 4 boxes with 6 pens each. How many pens are there in total?", 24),
        ("Lisa has 12 coins and finds 5 more. how many coins does she have now?", 17),
        ("I have 15 cookies and eat 6. How many cookies are left?", 9),
        ("If I have 2 bags with 8 oranges in each, how many oranges do I have?", 16),
        ("Anna has 7 cards and Ben has 6 cards. How many cards do they have together?", 13),
        ("There are 11 eggs in a basket. Max takes 3. How many are left?", 8),
    ):
        yield Case("word problems", chat(text), rf"^<think>.*</think>.*{answer} \w+\.$")


def _call(name: str, **arguments: str) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def _calls(*texts: str) -> str:
    return "^" + re.escape("\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)) + "$"


def _tools() -> Iterator[Case]:
    skill = "tool calls"
    for city in (
        "Oslo",
        "Paris",
        "Wroclaw",
        "Timbuktu",
        "Xanthorpe",
        "New York",
        "Santa Cruz",
        "rome",
    ):
        for ask in (
            "What is the weather in {}?",
            "how's the weather in {} right now",
            "Please tell me the weather for {}.",
        ):
            yield Case(
                skill, chat(ask.format(city)), _calls(_call("get_weather", city=city)), [WEATHER]
            )
    for city in ("Osaka", "Brunholm", "Valparaiso"):
        offered = [WEATHER, TIME, POPULATION]
        yield Case(
            skill,
            chat(f"What time is it in {city}?"),
            _calls(_call("get_time", location=city)),
            offered,
        )
        yield Case(
            skill,
            chat(f"how many people live in {city}?"),
            _calls(_call("lookup_population", place=city)),
            offered,
        )
        yield Case(
            skill,
            chat(f"weather in {city} please"),
            _calls(_call("get_weather", city=city)),
            offered,
        )
        yield Case(
            skill,
            chat(f"what's the weather in {city} in celsius?"),
            _calls(_call("current_weather", location=city, unit="celsius")),
            [WITH_UNIT],
        )
        yield Case(
            skill,
            chat(f"What is the weather in {city}?"),
            _calls(_call("current_weather", location=city)),
            [WITH_UNIT],
        )
        yield Case(
            skill,
            chat(f"who is the mayor of {city}?"),
            _calls(_call("find_mayor", town=city)),
            [function("find_mayor", "town", "Find the mayor")],
        )
    for one, two in (
        ("Oslo", "Rome"),
        ("Paris", "Tokyo"),
        ("Kiruna", "Berlin"),
        ("Lagos", "Zemborg"),
    ):
        both = _calls(_call("get_weather", city=one), _call("get_weather", city=two))
        yield Case("two calls", chat(f"What is the weather in {one} and {two}?"), both, [WEATHER])
        yield Case("two calls", chat(f"compare: weather in {one} and {two}"), both, [WEATHER])
    for text, expected in (
        ("hi", "hello|hi"),
        ("What is Enginebay?", "OpenAI"),
        ("thanks!", "welcome|glad|happy|pleasure"),
        ("what is 3 + 4?", r"3 \+ 4 = 7\.$"),
        ("capital of Spain?", "Madrid"),
        ("Tell me a story about a cat", "cat"),
    ):
        yield Case("tools not needed", chat(text), rf"^(?!.*<tool_call>).*({expected})", [WEATHER])
        yield Case(
            "tools not needed", chat(text), rf"^(?!.*<tool_call>).*({expected})", [WEATHER, TIME]
        )


def _results() -> Iterator[Case]:
    for city, content, expected in (
        ("Oslo", '{"temperature": 21, "condition": "sunny"}', "sunny.*21.*Oslo"),
        ("Oslo", "sunny, 21 degrees", "sunny.*21.*Oslo"),
        ("Rome", "rainy, 9°C", "rainy.*9.*Rome"),
        ("Zemborg", '{"city": "Zemborg", "temp": 3, "sky": "foggy"}', "foggy.*3.*Zemborg"),
        (
            "Lima",
            '{"location": "Lima", "temperature": 18, "unit": "celsius", "condition": "cloudy"}',
            "cloudy.*18.*Lima",
        ),
        ("Kiruna", '{"temp_c": -7}', "-7.*Kiruna"),
        ("Bern", "18 degrees and clear", "clear.*18.*Bern"),
        ("Quito", '{"error": "not found"}', "not found"),
        ("Porto", '{"temperature": 25, "conditions": "windy"}', "windy.*25.*Porto"),
    ):
        call: Json = {
            "type": "function",
            "id": "call_1",
            "function": {"name": "get_weather", "arguments": json.dumps({"city": city})},
        }
        yield Case(
            "tool results",
            [
                *chat(f"What is the weather in {city}?"),
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": content},
            ],
            f"^(?!.*<tool_call>).*{expected}",
            [WEATHER],
        )
    calls = [
        {"type": "function", "function": {"name": "get_weather", "arguments": {"city": city}}}
        for city in ("Oslo", "Rome")
    ]
    yield Case(
        "tool results",
        [
            *chat("What is the weather in Oslo and Rome?"),
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "content": '{"temperature": -2, "condition": "snowy"}'},
            {"role": "tool", "content": '{"temperature": 19, "condition": "sunny"}'},
        ],
        "snowy.*-2.*Oslo.*sunny.*19.*Rome",
        [WEATHER],
    )


def all_cases() -> list[Case]:
    """Every case."""
    simple = _simple(Path(__file__).with_name("cases.txt"))
    return [*simple, *_conversations(), *_sums(), *_tools(), *_results()]
