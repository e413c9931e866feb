"""The main job, end to end: the demo model behind a real server, through the `openai` SDK."""

import asyncio
import itertools
import json
import logging
import random
from typing import Any

import pytest
from openai import AsyncOpenAI
from transformers import AutoTokenizer

from enginebay_hf.engine import HFEngine
from tests.backends.tiny import load
from tests.support import (
    DEMO_MODEL,
    Server,
    engine_backend,
    plugins_with,
    scripted_config,
    serve,
)

NAME = "enginebay-demo"
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(DEMO_MODEL)


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def ask(demo: Server, text: str, **options: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 120, **options}
    return demo.openai.chat.completions.create(model=NAME, messages=user(text), **options)


def joined(chunks: list[Any], field: str) -> str:
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    return "".join(getattr(delta, field, None) or "" for delta in deltas)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello!", ["hello", "hi"]),
        ("What is Enginebay?", ["openai"]),
        ("How do I configure Enginebay?", ["config.yml"]),
    ],
)
def test_it_holds_a_small_conversation(demo: Server, text: str, expected: list[str]) -> None:
    content = ask(demo, text).choices[0].message.content.lower()
    assert any(word in content for word in expected), content


def test_greedy_is_deterministic_and_prompts_differ(demo: Server) -> None:
    prompts = ["Hello!", "What is Enginebay?", "Tell me a story about a train.", "Count to 5."]
    answers = [ask(demo, prompt).choices[0].message.content for prompt in prompts]
    assert answers == [ask(demo, prompt).choices[0].message.content for prompt in prompts]
    assert len(set(answers)) == len(prompts)


def test_sums_are_reasoned_about(demo: Server) -> None:
    choice = ask(demo, "What is 7 + 5?").choices[0]
    assert "12" in choice.message.content
    assert "12" in choice.message.reasoning_content
    assert "think" not in choice.message.content + choice.message.reasoning_content
    chunks = list(ask(demo, "What is 7 + 5?", stream=True))
    assert joined(chunks, "content") == choice.message.content
    assert joined(chunks, "reasoning_content") == choice.message.reasoning_content


def test_reasoning_can_be_forced_and_switched_off(demo: Server) -> None:
    # TAB-4 TAB-5
    kwargs: Any = {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}
    message = ask(demo, "What is 3 + 4?", **kwargs).choices[0].message
    assert message.reasoning_content
    assert "7" in message.content
    kwargs["extra_body"]["chat_template_kwargs"]["enable_thinking"] = False
    message = ask(demo, "What is 3 + 4?", **kwargs).choices[0].message
    assert getattr(message, "reasoning_content", None) is None
    assert "<think>" not in message.content


def test_a_tool_is_called_and_its_result_used(demo: Server) -> None:
    question = "What is the weather in Oslo?"
    choice = ask(demo, question, tools=TOOLS).choices[0]
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}

    chunks = list(ask(demo, question, tools=TOOLS, stream=True))
    pieces = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or []]
    assert [piece.function.name for piece in pieces if piece.function.name] == ["get_weather"]
    assert len(pieces) > 3
    arguments = "".join(piece.function.arguments for piece in pieces)
    assert arguments == call.function.arguments

    messages = [
        *user(question),
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"},
    ]
    answer = demo.openai.chat.completions.create(
        model=NAME, messages=messages, tools=TOOLS, temperature=0, max_tokens=80
    )
    assert "21" in (answer.choices[0].message.content or "")


async def test_eight_requests_are_answered_together(demo: Server) -> None:
    order: list[int] = []

    async def stream(client: AsyncOpenAI, number: int) -> None:
        chunks = await client.chat.completions.create(
            model=NAME,
            messages=user(f"Tell me a long story about {number} trains."),
            stream=True,
            max_tokens=40,
            temperature=0,
        )
        async for _ in chunks:
            order.append(number)

    async with demo.async_openai() as client:
        await asyncio.gather(*(stream(client, number) for number in range(8)))
    last_start = max(order.index(number) for number in range(8))
    first_end = min(len(order) - order[::-1].index(number) for number in range(8))
    assert last_start < first_end
    assert sum(a != b for a, b in itertools.pairwise(order)) > 40


async def check_that_nothing_is_left(demo: Server, engine: HFEngine) -> None:
    backend = demo.app.state.services.models.find(NAME).served().backend
    async with demo.async_openai() as client:
        for _ in range(100):
            await client.completions.create(model=NAME, prompt="Hello", max_tokens=1)
            if not backend._streams and not engine._requests:
                return
    pytest.fail("a request whose client has left is still there")


async def test_clients_that_leave_leave_nothing_behind() -> None:
    """Streams closed after a random number of chunks; then streams, rows and queue are empty."""
    dice = random.Random(0)
    engine = load(DEMO_MODEL, threads=1)
    plugins = plugins_with(scripted=engine_backend(lambda: engine))

    async def leave_early(client: AsyncOpenAI, number: int) -> None:
        chunks = await client.chat.completions.create(
            model=NAME,
            messages=user(f"Tell me a long story about {number} trains."),
            stream=True,
            n=dice.randint(1, 3),
            max_tokens=60,
        )
        for _ in range(dice.randint(0, 8)):
            await anext(aiter(chunks))
        await chunks.close()

    with serve(scripted_config(name=NAME), plugins) as demo:
        async with demo.async_openai() as client:
            await asyncio.gather(*(leave_early(client, number) for number in range(40)))
            await check_that_nothing_is_left(demo, engine)


def test_a_seed_gives_the_same_answer_alone_and_in_company(demo: Server) -> None:
    options: Any = {"seed": 11, "temperature": 1.0, "n": 3, "max_tokens": 30}
    alone = [c.message.content for c in ask(demo, "Tell me a story.", **options).choices]
    stream = ask(demo, "Tell me a long story about a ship.", stream=True, max_tokens=400)
    next(iter(stream))
    company = [c.message.content for c in ask(demo, "Tell me a story.", **options).choices]
    stream.close()
    assert alone == company
    assert len(set(alone)) == 3


def test_usage_is_right_to_the_token(demo: Server, tokenizer: Any) -> None:
    text = "Tell me a story about a lamp."
    prompt = tokenizer.apply_chat_template(user(text), add_generation_prompt=True)["input_ids"]
    whole = ask(demo, text, logprobs=True)
    tokens = [entry.token for entry in whole.choices[0].logprobs.content]
    assert "".join(tokens) == whole.choices[0].message.content
    assert whole.usage.prompt_tokens == len(prompt)
    assert whole.usage.completion_tokens == len(tokens) + 1  # and the end-of-sequence token
    assert whole.usage.total_tokens == len(prompt) + len(tokens) + 1

    *chunks, last = ask(demo, text, stream=True, stream_options={"include_usage": True})
    assert joined(chunks, "content") == whole.choices[0].message.content
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(last.usage, count) == getattr(whole.usage, count)
    assert last.usage.prompt_tokens_details.cached_tokens == len(prompt) - 1

    three = ask(demo, text, n=3, max_tokens=9).usage
    assert (three.prompt_tokens, three.completion_tokens) == (len(prompt), 27)


def test_usage_with_a_stop_string(demo: Server) -> None:
    text = "Tell me a story about a lamp."
    whole = ask(demo, text, logprobs=True).choices[0]
    content = whole.message.content
    stop = content[15:18]
    tokens = 0
    seen = ""
    while stop not in seen:
        seen += whole.logprobs.content[tokens].token
        tokens += 1
    stopped = ask(demo, text, stop=stop)
    assert stopped.choices[0].message.content == content[: content.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].stop_reason == stop
    assert stopped.usage.completion_tokens == tokens


def test_usage_of_an_aborted_request(demo: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody is left to be told, so the log says it."""
    with caplog.at_level(logging.INFO, logger="enginebay.chat.answer.generation"):
        stream = ask(demo, "Tell me a long story.", stream=True, extra_body={"ignore_eos": True})
        for _ in range(3):
            next(iter(stream))
        stream.close()
        ask(demo, "Hello!", max_tokens=30)  # by then the first one is over
    aborted = [record.getMessage() for record in caplog.records if "aborted" in record.message]
    assert len(aborted) == 1
    completion = int(aborted[0].partition(" prompt and ")[2].split()[0])
    assert 2 <= completion < 120


def test_logprobs_are_those_of_the_model(demo: Server, tokenizer: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    text = "What is Enginebay?"
    prompt = tokenizer.apply_chat_template(user(text), add_generation_prompt=True)["input_ids"]
    answer = ask(demo, text, logprobs=True, top_logprobs=3, max_tokens=12)
    entries = answer.choices[0].logprobs.content
    completion = tokenizer("".join(e.token for e in entries), add_special_tokens=False)["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + completion])).logits[0]
    reference = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    for position, (entry, token_id) in enumerate(zip(entries, completion, strict=True)):
        assert entry.logprob == pytest.approx(
            reference[position, token_id].item(), rel=5e-3, abs=1e-2
        )
        assert [top.logprob for top in entry.top_logprobs] == pytest.approx(
            reference[position].topk(3).values.tolist(), rel=5e-3, abs=1e-2
        )
