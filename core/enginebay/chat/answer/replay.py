"""Parses a captured answer again with the current parsers."""

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from enginebay.chat.answer.capture_format import JoinedParts, Written, delta_of
from enginebay.chat.answer.recipe import CollectorRecipe, recipe_of
from enginebay.contract.formats import ReasoningFormat, ToolFormat
from enginebay.contract.types import Delta

Chunks = Literal["as-captured", "1", "random"]


class CannotReplayError(Exception):
    """The file is not a capture, or needs a format that is not installed."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A file of `Captures`: the deltas of each choice, and the parts parsed from them."""

    id: str
    recipe: CollectorRecipe
    deltas: Mapping[int, list[Delta]]
    answer: Mapping[int, list[Written]]


def read_capture(path: Path) -> Captured:
    """Read a file. Raises `CannotReplayError`, naming the line that is wrong."""
    deltas: dict[int, list[Delta]] = {}
    request: Written = {}
    end: Written = {}
    number = 1
    try:
        with path.open(encoding="utf-8") as file:
            for text in file:
                line = json.loads(text)
                if "request" in line:
                    request = line["request"]
                    recipe = recipe_of(request["recipe"])
                elif "delta" in line:
                    deltas.setdefault(line["choice"], []).append(delta_of(line["delta"]))
                else:
                    end = {**line, "answer": dict(line["answer"])}
                number += 1
    except OSError as error:
        raise CannotReplayError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"not a line of a capture: {type(error).__name__}: {error}"
        raise CannotReplayError(f"{path}:{number}: {reason}") from error
    if not request or not end:
        raise CannotReplayError(f"{path}: the first or the last line is missing")
    if end.get("cut_off"):
        raise CannotReplayError(f"{path}: the answer was too long to be captured in full")
    answer = {int(choice): parts for choice, parts in end["answer"].items()}
    return Captured(str(request.get("id")), recipe, deltas, answer)


def replay(
    captured: Captured,
    reasoning: Mapping[str, ReasoningFormat],
    tools: Mapping[str, ToolFormat],
    chunks: Chunks,
    chance: random.Random,
) -> dict[int, list[Written]]:
    """The parts of each choice as today's parsers produce them, however the text is split.

    Raises `CannotReplayError` for a format that is not installed.
    """
    answer = {}
    for choice, deltas in captured.deltas.items():
        try:
            collector = captured.recipe.collector(reasoning, tools)
        except KeyError as error:
            raise CannotReplayError(f"the format {error} is not installed") from error
        joined = JoinedParts()
        for delta in _cut(deltas, chunks, chance):
            joined.add(collector.feed(delta))
        answer[choice] = joined.parts
    return answer


def _cut(deltas: Iterable[Delta], chunks: Chunks, chance: random.Random) -> Iterator[Delta]:
    if chunks == "as-captured":
        yield from deltas
        return
    for delta in deltas:
        text = delta.text
        while len(text) > 1:
            size = 1 if chunks == "1" else chance.randint(1, len(text))
            if size == len(text):
                break
            yield Delta(text=text[:size])
            text = text[size:]
        yield replace(delta, text=text)
