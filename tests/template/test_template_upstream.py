"""Every chat template of llama.cpp's source renders here as transformers renders it."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from enginebay.chat.plan.template_messages import template_messages
from enginebay.chat.schemas.messages import Message
from enginebay.models.template.features import TemplateFeatures
from enginebay.models.template.template import ChatTemplate, TemplateError
from tests.llama_templates import WITHOUT, llama_templates

TEMPLATES = llama_templates()
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather <b>now</b>.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Straße & Ort"},
                    "days": {"type": "integer", "description": "How many", "enum": [1, 2]},
                },
                "required": ["city"],
            },
        },
    }
]
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Wie ist das Wetter, <b>jetzt</b>?"}
ANSWER = {"role": "assistant", "content": "Let me see.", "name": None}
THOUGHTFUL = {**ANSWER, "reasoning_content": "Sun or rain?"}
CALL = {
    "role": "assistant",
    "content": None,
    "reasoning_content": "I have to look.",
    "tool_calls": [
        {
            "id": "abcDEF123",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": "Køln", "days": 2}},
        }
    ],
}
RESULT = {
    "role": "tool",
    "content": '{"sky": "blue"}',
    "tool_call_id": "abcDEF123",
    "name": "get_weather",
}
NEXT = {"role": "user", "content": "Thanks!"}

FIREFUNCTION: Any = {"functions": "[]", "datetime": "today"}  # its template fails without them

CONVERSATIONS: dict[str, list[Any]] = {
    "plain": [USER],
    "two turns": [USER, ANSWER, NEXT],
    "system": [SYSTEM, USER],
    "reasoning": [SYSTEM, USER, THOUGHTFUL, NEXT],
    "reasoning last": [USER, THOUGHTFUL],
    "call": [USER, CALL],
    "result": [SYSTEM, USER, CALL, RESULT],
    "after the result": [USER, CALL, RESULT, THOUGHTFUL, NEXT],
    "empty content": [USER, {**CALL, "content": ""}, RESULT],
    "developer": [{"role": "developer", "content": "Be brief."}, USER],
}


@pytest.fixture(scope="module")
def theirs() -> Callable[..., str]:
    """`theirs(source, messages, **options)`: transformers' `apply_chat_template`."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(TOKENS.values())}
    plain = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=plain, **TOKENS)

    def render(source: str, messages: Any, **options: Any) -> str:
        return str(
            tokenizer.apply_chat_template(messages, chat_template=source, tokenize=False, **options)
        )

    return render


compiled = cache(lambda source: ChatTemplate(source, TOKENS))


def ours(source: str, messages: Any, **options: Any) -> str:
    return compiled(source).render(messages, **options)


def outcome(render: Callable[..., str], *arguments: Any, **options: Any) -> tuple[str, str]:
    """The text, or which error there is and what it says."""
    try:
        return "text", render(*arguments, **options)
    except TemplateError as error:
        cause = error.__cause__
        return type(cause).__name__, str(cause)
    except Exception as error:
        return type(error).__name__, str(error)


# transformers cannot write what `map` gives as JSON; we can, as llama.cpp does
LAZY = ("TypeError", "Object of type generator is not JSON serializable")


def listed(source: str) -> str:
    """The template, with a list where it passes on the result of `map`."""
    return re.sub(r"(\| *map\([^)]*\)) *\| *tojson", r"\1 | list | tojson", source)


@pytest.mark.skipif(not TEMPLATES, reason=WITHOUT)
@pytest.mark.parametrize("name", TEMPLATES)
def test_renders_as_transformers_does(name: str, theirs: Callable[..., str]) -> None:
    # TAB-38 TAB-41 VLLM-19 VLLM-21
    source = TEMPLATES[name]
    rendered = 0
    for messages in CONVERSATIONS.values():
        for options in (
            {"add_generation_prompt": True},
            {"add_generation_prompt": False},
            {"add_generation_prompt": True, "tools": TOOLS},
            {"add_generation_prompt": False, "tools": TOOLS},
            {"add_generation_prompt": True, "documents": [{"title": "T", "text": "Sun."}]},
        ):
            expected = outcome(theirs, source, messages, **options, **FIREFUNCTION)
            result = outcome(ours, source, messages, **options, variables=FIREFUNCTION)
            if expected == LAZY:
                expected = outcome(theirs, listed(source), messages, **options, **FIREFUNCTION)
            assert result == expected
            rendered += expected[0] == "text"
    assert rendered >= 10


@pytest.mark.skipif(not TEMPLATES, reason=WITHOUT)
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("thinking", [True, False])
def test_variables_as_with_transformers(
    name: str, thinking: bool, theirs: Callable[..., str]
) -> None:
    # TAB-39 VLLM-22
    given: Any = {"enable_thinking": thinking, "thinking": thinking, "reasoning_effort": "high"}
    source, messages = TEMPLATES[name], [SYSTEM, USER]
    expected = outcome(theirs, source, messages, add_generation_prompt=True, **given)
    assert outcome(ours, source, messages, variables=given) == expected


@pytest.mark.skipif(not TEMPLATES, reason=WITHOUT)
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("content", ["It is ", " It is", [{"type": "text", "text": "It is "}]])
@pytest.mark.parametrize("field", [True, "reasoning_content"])
def test_continues_as_transformers_does(
    name: str, content: Any, field: Any, theirs: Callable[..., str]
) -> None:
    # VLLM-20
    source = TEMPLATES[name]
    messages = [USER, {"role": "assistant", "content": content, "reasoning_content": "Hm, "}]
    expected = outcome(theirs, source, messages, continue_final_message=field)
    options = {"continue_final_message": field, "add_generation_prompt": False}
    found = outcome(ours, source, messages, **options)
    if found[0] == "InvalidRequestError":  # in words of our own
        assert expected[0] == "ValueError"
    else:
        assert found == expected


def call(number: int, arguments: str) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    return {"id": f"call_{number:024d}", "type": "function", "function": function}


def result(number: int, content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": f"call_{number:024d}"}


def calling(*calls: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


OSLO, ROME = call(1, '{"city": "Oslofjord"}'), call(2, '{"city": "Romulus"}')
AS_CLIENTS_SEND: dict[str, list[Any]] = {
    "system last": [
        {"role": "system", "content": "sysone"},
        {"role": "system", "content": "systwo"},
        USER,
        ANSWER,
        NEXT,
        {"role": "system", "content": "systhree"},
    ],
    "system later": [USER, ANSWER, {"role": "system", "content": "sysone"}, NEXT],
    "developer": [{"role": "developer", "content": "sysone"}, USER],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    "calls": [
        USER,
        calling(OSLO, ROME),
        result(2, "resulttwo"),
        result(1, "resultone"),
        ANSWER,
        NEXT,
    ],
    "empty content": [USER, calling(OSLO, content=""), result(1, "resultone")],
    "broken arguments": [USER, calling(call(1, "Oslofjord, please")), result(1, "resultone")],
}
# Their own source fails in the sandbox of transformers, whatever the messages of calls look like.
CANNOT_RENDER_CALLS = {"Kimi-K2-Instruct", "Kimi-K2-Thinking", "llama-cpp-deepseek-r1"}


@pytest.mark.skipif(not TEMPLATES, reason=WITHOUT)
@pytest.mark.parametrize("name", TEMPLATES)
def test_what_clients_send_comes_through(name: str) -> None:
    """No system message is lost, no history of calls is refused."""
    features = TemplateFeatures(compiled(TEMPLATES[name]))
    for kind, messages in AS_CLIENTS_SEND.items():
        calls = any("tool_calls" in message for message in messages)
        if calls and name in CANNOT_RENDER_CALLS:
            continue
        parsed = [Message.model_validate(message) for message in messages]
        text = features.render(
            template_messages(parsed, features).messages, tools=TOOLS if calls else None
        )
        assert text is not None, kind
        contents = [m["content"] for m in messages if isinstance(m["content"], str)]
        places = [text.find(content) for content in contents]
        assert -1 not in places, kind
        if calls and features.arguments_format:
            assert "Oslofjord" in text
            assert ("Romulus" in text) == (kind == "calls")
        if kind == "calls":
            assert text.index("resultone") < text.index("resulttwo")
