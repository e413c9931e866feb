"""Tool calls: functions in many spellings, the calls to make, and what to say about the result."""

import json
import random
from dataclasses import dataclass

from demo import words
from demo.talk import expand
from demo.turns import Dialogue, Json

Value = int | str
_PLACE_KEYS = (
    "city",
    "city",
    "city",
    "location",
    "location",
    "place",
    "town",
    "city_name",
    "where",
)
_SKIES = words.LISTS["skies"]
_FACETS = words.LISTS["facets"]


@dataclass(frozen=True, slots=True)
class Tool:
    """One function, as offered to the model."""

    topic: str
    name: str
    place_key: str
    unit_key: str

    def schema(self, rng: random.Random) -> Json:
        """The OpenAI description of this function, in one of many wordings."""
        about = self.topic.replace("_", " ")
        properties: Json = {}
        if self.place_key:
            properties[self.place_key] = {"type": "string"}
            if rng.random() < 0.4:
                properties[self.place_key]["description"] = expand(
                    rng,
                    "(The city|Name of the city|City name|The place to look up|A city, e.g. Rome)",
                )
        if self.unit_key:
            properties[self.unit_key] = {"type": "string", "enum": ["celsius", "fahrenheit"]}
        parameters: Json = {"type": "object", "properties": properties}
        if rng.random() < 0.8:
            parameters["required"] = [self.place_key] if self.place_key else []
        if rng.random() < 0.2:
            parameters["additionalProperties"] = False
        function: Json = {"name": self.name}
        if rng.random() < 0.9:
            function["description"] = expand(
                rng,
                f"(Get the (current |){about}|The {about}|Look up the {about}|Returns the {about}"
                f"|{about}|Current {about}|Get the {about})( of a city| for a city| in a place"
                "| for a location||)(.||)",
            )
        function["parameters"] = parameters
        if rng.random() < 0.08:
            function["strict"] = True
        return {"type": "function", "function": function}


def make_tool(rng: random.Random, topic: str) -> Tool:
    """A tool for a topic under one of many names."""
    name = expand(
        rng,
        "({t}|get_{t}|get_{t}|get_{t}|current_{t}|get_current_{t}|lookup_{t}|fetch_{t}|city_{t}"
        "|find_{t}|show_{t}|{t}_lookup|{t}_of|query_{t})",
    ).replace("{t}", topic)
    if topic == "time" and rng.random() >= 0.8:
        name = "clock"
    if topic == "weather" and rng.random() < 0.1:
        name = rng.choice(("get_forecast", "forecast"))
    if topic == "time" and rng.random() < 0.15:
        return Tool(topic, name, "", "")
    unit = rng.choice(("unit", "unit", "units", "scale")) if rng.random() < 0.3 else ""
    return Tool(
        topic, name, rng.choice(_PLACE_KEYS), unit if topic in ("weather", "temperature") else ""
    )


def pick_topic(rng: random.Random) -> str:
    """Mostly weather, sometimes time or population, sometimes anything."""
    return rng.choices(
        ("weather", "time", "population", rng.choice(_FACETS)), weights=(50, 14, 12, 24)
    )[0]


_ASK = {
    "weather": (
        "(what is|what's|whats|how is|how's|tell me|show me|check|get|look up)"
        " the (|current )weather( like|) (in|for|at) {c}(| today| now| right now| please)?",
        "(weather|forecast|weather please) (in|for) {c}(|?| please)",
        "(is it|will it be) (sunny|raining|cold|warm|cloudy|hot) in {c}(| today| now)?",
        "(how (warm|cold|hot) is it|do i need an umbrella|what should i wear) in {c}(| today)?",
        "{c} weather(|?| please| now)",
        "(i need|give me|can you get|can you tell me|please get|could you check)"
        " the weather (in|for|of) {c}",
        "(i am|we are) (travelling|going|flying) to {c}. (what is|how is) the weather(| there)?",
    ),
    "time": (
        "(what is|what's|whats|tell me|show me|check) the (|current |local )time in {c}(| now)?",
        "what time is it (in|now in) {c}?",
        "(time|clock|current time) in {c}(|?| please)",
        "how late is it in {c}?",
    ),
    "population": (
        "(what is|what's|tell me|look up|check|find) the population of {c}?",
        "how many (people|inhabitants) (live in|does) {c}(| have)?",
        "(population of|how big is) {c}(|?| please)",
    ),
}
_ASK_FACET = (
    "(what is|what's|whats|tell me|show me|look up|check|find|i need) the {t} (of|in|for) {c}?",
    "(can you tell me|do you know|please get) the {t} (of|in|for) {c}?",
    "{t} (of|in|for) {c}(|?| please)",
)


def ask(rng: random.Random, topic: str, places: list[str]) -> str:
    """A question about one or more places."""
    patterns = _ASK.get(topic, _ASK_FACET)
    pattern = rng.choice(patterns if len(places) == 1 else (*_ASK_FACET, *patterns[:1]))
    text = expand(rng, pattern).replace("{t}", topic.replace("_", " "))
    return text.replace("{c}", words.join(places))


def call(tool: Tool, place: str, unit: str = "") -> Json:
    """One tool call as it stands in an assistant message."""
    arguments: Json = {tool.place_key: place} if tool.place_key else {}
    if unit:
        arguments[tool.unit_key] = unit
    return {"type": "function", "function": {"name": tool.name, "arguments": arguments}}


def call_text(calls: list[Json]) -> str:
    """The calls in the syntax that the model writes."""
    return "\n".join(
        "<tool_call>\n"
        + json.dumps(
            {"name": c["function"]["name"], "arguments": c["function"]["arguments"]},
            ensure_ascii=False,
        )
        + "\n</tool_call>"
        for c in calls
    )


def _weather_result(rng: random.Random, place: str) -> tuple[str, str]:
    sky, degrees = rng.choice(_SKIES), rng.randint(-15, 42)
    said = f"It is {sky} and {degrees} degrees in {place}."
    style = rng.randrange(8)
    if style == 0:
        return f"{sky}, {degrees} degrees", said
    if style == 1:
        mark = rng.choice((" C", "°C", "°", " degrees", " celsius"))
        return expand(rng, f"{degrees}{mark}(, | and |,){sky}"), said
    if style == 2:
        return f"It is {sky} and {degrees} degrees in {place}.", said
    if style == 3:
        return sky, f"It is {sky} in {place}."
    result: Json = {}
    if rng.random() < 0.5:
        result[rng.choice(("city", "location", "place"))] = place
    degree_key = rng.choice(
        ("temperature", "temperature", "temp", "degrees", "temp_c", "temperature_c", "celsius")
    )
    sky_key = rng.choice(("condition", "conditions", "sky", "weather", "description", "summary"))
    pairs: list[tuple[str, Value]] = [(degree_key, degrees), (sky_key, sky)]
    rng.shuffle(pairs)
    if style == 4:
        result[degree_key] = degrees
        return _dump(rng, result), f"It is {degrees} degrees in {place}."
    result |= dict(pairs)
    if rng.random() < 0.25:
        result[rng.choice(("unit", "units"))] = rng.choice(("celsius", "C"))
    return _dump(rng, result), said


def _dump(rng: random.Random, value: Json) -> str:
    if rng.random() < 0.15:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return json.dumps(value, ensure_ascii=False)


def _plain_result(rng: random.Random, topic: str, place: str) -> tuple[str, str]:
    about = topic.replace("_", " ")
    value = {
        "time": f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}",
        "population": str(rng.choice((rng.randint(1, 999), rng.randint(10_000, 9_999_999)))),
    }.get(topic) or rng.choice(
        (words.person(rng), str(rng.randint(0, 3000)), rng.choice(words.WORDS))
    )
    said = (
        f"It is {value} in {place}." if topic == "time" else f"The {about} of {place} is {value}."
    )
    style = rng.randrange(3)
    if style == 0:
        return value, said
    number: Value = int(value) if value.isdigit() else value
    result: Json = {"city": place} if rng.random() < 0.5 else {}
    key = topic if rng.random() < 0.7 else rng.choice(("value", "result", "answer"))
    return _dump(rng, result | {key: number}), said


def result(rng: random.Random, topic: str, place: str) -> tuple[str, str]:
    """What the tool returns, and the sentence that reports it."""
    if rng.random() < 0.06:
        why = rng.choice(("not found", "timeout", "no data", "unknown city", "service unavailable"))
        content = rng.choice((why, json.dumps({"error": why}), f"error: {why}", f"Error: {why}"))
        return content, f"Sorry, the tool had an error for {place}: {why}."
    if topic == "weather":
        return _weather_result(rng, place)
    return _plain_result(rng, topic, place)


def offer(rng: random.Random, wanted: str = "", most: int = 3) -> tuple[Tool, list[Json]]:
    """A tool for the wanted topic, and the list of tools that it is offered in."""
    wanted = wanted or pick_topic(rng)
    tool = make_tool(rng, wanted)
    amount = rng.choices((0, 1, 2)[:most], weights=(38, 34, 28)[:most])[0]
    topics = {pick_topic(rng) for _ in range(amount)} - {wanted}
    others = [make_tool(rng, topic) for topic in sorted(topics)]
    offered = [tool, *others]
    rng.shuffle(offered)
    return tool, [each.schema(rng) for each in offered]


def tool_dialogue(rng: random.Random) -> Dialogue:
    """A question with a fitting tool: the call, or the answer after the result."""
    tool, tools = offer(rng)
    amount = rng.choices((1, 2, 3), weights=(74, 23, 3))[0] if tool.place_key else 1
    places = list({words.city(rng): None for _ in range(amount)})
    places = [p.lower() for p in places] if rng.random() < 0.25 else places
    unit = rng.choice(("celsius", "fahrenheit")) if tool.unit_key and rng.random() < 0.5 else ""
    if tool.place_key:
        question = ask(rng, tool.topic, places) + (f" in {unit}" if unit else "")
    else:
        question = expand(rng, "(what time is it|what is the time|time please)(|?| now?)")
        places = [""]
    messages: list[Json] = [{"role": "user", "content": question}]
    calls = [call(tool, place, unit) for place in places]
    if rng.random() < 0.55 or not tool.place_key:
        return Dialogue("tool_call", messages, call_text(calls), tools)
    messages.append({"role": "assistant", "content": None, "tool_calls": calls})
    reports = []
    for place in places:
        content, said = result(rng, tool.topic, place)
        messages.append({"role": "tool", "content": content})
        reports.append(said)
    return Dialogue("tool_result", messages, " ".join(reports), tools)


def no_tool_turn(rng: random.Random) -> tuple[str, str, str]:
    """A question that needs a tool which is not there: question, answer and topic."""
    topic = pick_topic(rng) if rng.random() < 0.3 else rng.choice(("weather", "weather", "time"))
    place = words.city(rng)
    if topic in ("weather", "time") and rng.random() < 0.25:
        question = expand(
            rng, f"(what is|what's|tell me|how is) the {topic}(| today| now| right now)?"
        )
    else:
        question = ask(rng, topic, [place])
    about = topic.replace("_", " ")
    answer = expand(
        rng,
        f"(I have no tool for that, so I cannot look up the {about}."
        f"|I cannot look up the {about}, because I have no tool for that.)",
    )
    return question, answer, topic
