"""What servers of many kinds get, by what they are documented to take."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from chat_events import PATH, SAID, TOOL, USER, hosted, request, run
from enginebay_remote.chat_dialects import CHAT_DIALECTS, ChatDialect
from enginebay_remote.options import Options, Server
from fake import Answer, fake

from enginebay import (
    SamplingParams,
    UnsupportedParameterError,
)

EVERYTHING: dict[str, Any] = {
    "messages": (
        {"role": "developer", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": "Hello", "reasoning_content": "Hm."},
        USER,
    ),
    "tools": (TOOL,),
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "response_format": {"type": "json_object"},
    "reasoning_effort": "high",
    "enable_thinking": True,
    "chat_template_kwargs": {
        "enable_thinking": True,
        "thinking": True,
        "reasoning_effort": "high",
        "language": "nb",
    },
    "chosen_params": frozenset({"temperature", "max_tokens", "seed", "top_k", "stop"}),
}
CHOSEN = SamplingParams(temperature=1.0, max_tokens=9, seed=3, top_k=0, stop=("a",), logprobs=2)
SENT = {
    "model": "m",
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 1.0,
    "max_tokens": 9,
    "seed": 3,
    "stop": ["a"],
    "logprobs": True,
    "top_logprobs": 2,
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "response_format": {"type": "json_object"},
    "reasoning_effort": "high",
}
GONE = object()


CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(
    ("server", "otherwise", "roles", "thought"),
    [
        (
            "vllm",
            {
                "top_k": -1,
                "chat_template_kwargs": EVERYTHING["chat_template_kwargs"],
                "stream_options": CONTINUOUS,
            },
            "developer",
            "reasoning_content",
        ),
        (
            "sglang",
            {
                "top_k": -1,
                "seed": GONE,
                "chat_template_kwargs": EVERYTHING["chat_template_kwargs"],
                "stream_options": CONTINUOUS,
            },
            "developer",
            "reasoning_content",
        ),
        (
            "openai",
            {"max_tokens": GONE, "max_completion_tokens": 9},
            "developer",
            None,
        ),
        (
            "openrouter",
            {"top_k": -1, "reasoning_effort": GONE, "reasoning": {"effort": "high"}},
            "developer",
            "reasoning",
        ),
        (
            "deepseek",
            {"seed": GONE, "parallel_tool_calls": GONE, "thinking": {"type": "enabled"}},
            "system",
            "reasoning_content",
        ),
        (
            "mistral",
            {
                "seed": GONE,
                "random_seed": 3,
                "stream_options": GONE,
                "logprobs": GONE,
                "top_logprobs": GONE,
            },
            "system",
            None,
        ),
        ("other", {}, "developer", "reasoning_content"),
    ],
)
async def test_bodies(
    server: str, otherwise: dict[str, Any], roles: str, thought: str | None
) -> None:
    """Each server is sent what was chosen, under its own names; the rest is left to it."""
    answers, options = hosted(server, (200, SAID))
    with fake(answers) as running:
        _, info = await run(running, request(CHOSEN, **EVERYTHING), **options)
    [body] = running.bodies(PATH)
    messages = body.pop("messages")
    expected = {name: value for name, value in (SENT | otherwise).items() if value is not GONE}
    assert body == expected
    assert messages[0] == {"role": roles, "content": "Be brief."}
    answer = {"role": "assistant", "content": "Hello"}
    assert messages[2] == answer | ({thought: "Hm."} if thought else {})
    assert info.context_length == 99
    sent_otherwise = {"seed"} if "random_seed" in body else set()
    lacking = {name for name, value in otherwise.items() if value is GONE} - sent_otherwise
    assert info.unsupported >= lacking & {"seed", "logprobs", "parallel_tool_calls"}


@pytest.mark.parametrize(
    ("server", "chat", "sent"),
    [
        ("openrouter", {"reasoning_budget": 9}, {"reasoning": {"max_tokens": 9}}),
        ("openrouter", {"enable_thinking": False}, {"reasoning": {"enabled": False}}),
        (
            "deepseek",
            {"enable_thinking": False, "reasoning_effort": "none"},
            {"thinking": {"type": "disabled"}},
        ),
        ("vllm", {"structured_outputs": {"regex": "a"}}, {"structured_outputs": {"regex": "a"}}),
        ("sglang", {"structured_outputs": {"regex": "a"}}, {"regex": "a"}),
        ("llama-server", {"structured_outputs": {"grammar": "g"}}, {"grammar": "g"}),
    ],
)
async def test_thinking_and_forms(server: str, chat: dict[str, Any], sent: dict[str, Any]) -> None:
    """Under the names that each server has for them."""
    answers, options = hosted(server, (200, SAID))
    with fake(answers) as running:
        await run(running, request(**chat), **options)
    [body] = running.bodies(PATH)
    rest = {name: value for name, value in body.items() if name not in (*_SAME, "messages")}
    assert rest == sent


_SAME = ("model", "stream", "stream_options")


@pytest.mark.parametrize(
    ("server", "chat"),
    [
        ("deepseek", {"response_format": {"type": "json_schema", "json_schema": {}}}),
        ("llama-server", {"structured_outputs": {"regex": "a"}}),
    ],
)
async def test_forms_that_a_server_does_not_know(server: str, chat: dict[str, Any]) -> None:
    """An error before anything is sent, since an answer of any form would be worse."""
    answers, options = hosted(server, (200, SAID))
    with fake(answers) as running, pytest.raises(UnsupportedParameterError) as raised:
        await run(running, request(**chat), **options)
    assert raised.value.param == "constraint"
    assert not running.bodies(PATH)


@pytest.mark.parametrize(
    ("said", "options", "taken"),
    [
        ({}, {}, {"image", "audio", "video"}),
        ({"architecture": None}, {}, {"image", "audio", "video"}),
        ({"architecture": {"input_modalities": ["text", "image", "file"]}}, {}, {"image"}),
        ({"architecture": {"input_modalities": ["text"]}}, {}, set()),
        ({"architecture": {"input_modalities": ["text"]}}, {"modalities": ["audio"]}, {"audio"}),
        ({}, {"modalities": []}, set()),
    ],
)
async def test_modalities(said: dict[str, Any], options: dict[str, Any], taken: set[str]) -> None:
    """What the options say, what the server says, else all."""
    answers, _ = hosted("other", (200, SAID))
    answers["/v1/models"] = [(200, {"data": [{"id": "m", **said}]})]
    with fake(answers) as running:
        _, info = await run(running, request(), **options)
    assert info.modalities == taken


def test_modalities_need_messages() -> None:
    with pytest.raises(ValueError, match="completions take no media"):
        Options(api="completions", modalities=["image"])
    with pytest.raises(ValueError, match="image"):
        Options.model_validate({"modalities": ["smell"]})


_README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
_COLUMNS = {"Enginebay": "enginebay", "vLLM": "vllm", "SGLang": "sglang", "others": "other"}


def table() -> Iterator[tuple[str, str, str]]:
    """The README's table of the chat way: what, which server, what it says there."""
    lines = _README.partition("### Chat\n\n")[2].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    head = [cell.strip() for cell in lines[0].strip("|").split("|")][1:]
    for what, *cells in rows[2:]:
        for column, cell in zip(head, cells, strict=True):
            yield what, _COLUMNS.get(column, column.lower()), cell


@pytest.mark.parametrize("strict", [False, True])
async def test_an_enginebay_without_usage_in_every_event(strict: bool) -> None:
    """As one whose own model is elsewhere says: it is not asked for that again."""
    says = "stream_options.continuous_usage_stats, mirostat"
    named: Answer = (200, SAID, {"X-Unsupported-Params": says})
    error = {"code": "unsupported_parameter", "message": f"not supported: {says}"}
    refused: Answer = (400, {"error": error})
    answers, _ = hosted("enginebay", refused if strict else named, (200, SAID))
    with fake(answers) as running:
        _, info = await run(running, request(), server="enginebay")
    tried, body = running.bodies(PATH)
    assert (tried["stream"], tried["stream_options"]) == (True, CONTINUOUS)
    assert body["stream_options"] == {"include_usage": True}
    assert "mirostat" in info.unsupported


def test_the_table_in_the_readme() -> None:
    """It says what the dialects do."""
    cells = list(table())
    assert {server for _, server, _ in cells} == CHAT_DIALECTS.keys()
    for what, server, said in cells:
        assert said == documented(what, CHAT_DIALECTS[cast(Server, server)]), (what, server)


def documented(what: str, dialect: ChatDialect) -> str:
    """What a cell of the table is to say."""
    if what.startswith("`response_format`"):
        return "both" if "json_schema" in dialect.forms else "JSON"
    if what.startswith("regular"):
        forms = {"regex": "expressions", "choice": "choices", "grammar": "grammars"}
        known = [name for form, name in forms.items() if form in dialect.forms]
        return "all" if len(known) == 3 else ", ".join(known) or "no"
    if what == "`n`":
        return "yes" if dialect.several else "one by one"
    if what.startswith("reasoning of"):
        return f"`{dialect.thought_name}`" if dialect.thought_name else "nothing"
    names = re.findall(r"`(\w+)`", what) or ["logprobs"]
    [honoured] = {name in dialect.fields for name in names if name != "thinking"}
    if "enable_thinking" in names and honoured and dialect.thinking == "template":
        return "template"
    return "yes" if honoured else "no"
