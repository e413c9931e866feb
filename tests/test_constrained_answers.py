"""Structured answers and forced calls of models that would say anything else, over HTTP.

So many seeds as `ENGINEBAY_SEEDS` says, 5 if it is not set, and named calls in every third syntax
then: `ENGINEBAY_SEEDS=200` is the whole proof, which takes a while on a CPU.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from enginebay_parsers import TOOLS
from tests.backends import tiny
from tests.constrained import (
    BOOKING,
    SCHEMAS,
    SHORT_THOUGHT,
    answers,
    check_arguments,
    check_calls,
    check_json,
    finished,
    make_gguf,
    make_untrained,
    serving_all_formats,
    tools,
)
from tests.effort import some
from tests.support import DEMO_MODEL, Server

SEEDS = int(os.environ.get("ENGINEBAY_SEEDS", "5"))
SOME = list(TOOLS)[::5]
MANY = list(TOOLS) if SEEDS > 5 else list(TOOLS)[::3]


ON_CUDA = [
    pytest.mark.gpu,
    pytest.mark.hf,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ENGINES = [
    ("hf", {"threads": 1}, []),
    ("llamacpp", {"threads": 1}, []),
    ("hf", {"device": "cuda"}, ON_CUDA),
]


@pytest.fixture(scope="module", params=some(["demo", "untrained"], ["demo"]))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "demo":
        return DEMO_MODEL
    return make_untrained(tmp_path_factory.mktemp("models") / "untrained")


@pytest.fixture(
    scope="module",
    params=[pytest.param((name, options), marks=marks) for name, options, marks in ENGINES],
    ids=lambda engine: "-".join([engine[0], *map(str, engine[1].values())]),
)
def server(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    name, options = request.param
    load, path = tiny.load, folder
    if name == "llamacpp":
        load = pytest.importorskip("tests.backends.llamacpp").load
        path = make_gguf(folder, tmp_path_factory.mktemp("models") / "model.gguf")
    sizes = {"max_batch_size": 64, "context_length": 1024}
    with serving_all_formats(partial(load, path, **sizes, **options)) as running:
        yield running


@pytest.mark.parametrize("strict", [True, False])
async def test_answers_of_a_schema(server: Server, strict: bool) -> None:
    json_schema = {"name": "booking", "schema": BOOKING, "strict": strict}
    response_format = {"type": "json_schema", "json_schema": json_schema}
    choices = await answers(
        server, "hermes", SEEDS, response_format=response_format, extra_body=SHORT_THOUGHT
    )
    for choice in finished(choices):
        assert choice.finish_reason == "stop"
        check_json(choice, BOOKING)


async def calls(server: Server, names: Sequence[str], **body: Any) -> dict[str, list[Any]]:
    """Choices by tool format, of all of them at the same time."""
    asked = (answers(server, name, SEEDS, extra_body=SHORT_THOUGHT, **body) for name in names)
    return dict(zip(names, await asyncio.gather(*asked), strict=True))


async def test_required_calls_in_every_syntax(server: Server) -> None:
    required = {"tool_choice": "required", "parallel_tool_calls": False}
    for choices in (await calls(server, list(TOOLS), tools=tools(), **required)).values():
        for choice in finished(choices):
            assert choice.finish_reason == "tool_calls"
            assert len(choice.message.tool_calls) == 1
            check_calls(choice, list(SCHEMAS))


async def test_several_calls_at_once(server: Server) -> None:
    for choices in (await calls(server, SOME, tools=tools(), tool_choice="required")).values():
        for choice in choices:
            if choice.finish_reason == "tool_calls":  # others have gone on calling to the limit
                check_calls(choice, list(SCHEMAS))


async def test_calls_of_a_named_function(server: Server) -> None:
    named = {"type": "function", "function": {"name": "take-note_2"}}
    asked = {"tools": tools(strict=True), "tool_choice": named}
    for choices in (await calls(server, MANY, **asked)).values():
        for choice in finished(choices):
            check_calls(choice, ["take-note_2"])


async def test_calls_that_the_model_makes_by_itself(server: Server) -> None:
    asked = {"tools": tools(strict=True), "tool_choice": "auto"}
    for choices in (await calls(server, SOME, **asked)).values():
        for choice in choices:
            if choice.finish_reason == "tool_calls":
                check_arguments(choice, list(SCHEMAS))
