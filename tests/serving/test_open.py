"""`enginebay.open()`: the server's answers without a server. PLG-2, LF-2, LF-21"""

import asyncio
import re
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import enginebay
from enginebay.serving.local import LocalModel
from tests.backends import pooling_models
from tests.support import DEMO_MODEL, REPOSITORY, Server

GUIDE = REPOSITORY / "docs" / "guides" / "python.md"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
SUM = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "temperature": 0}

PLUGIN = """
from enginebay.testing import ScriptedEngine
from enginebay import BackendUnavailableError, EngineBackend, hookimpl

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}<think></think>"


def create(settings):
    pieces = ["<think>", "Hm.", "</think>", "Hello", ", ", settings.name]
    return EngineBackend(lambda: ScriptedEngine(pieces, chat_template=TEMPLATE))


def fail(settings):
    raise BackendUnavailableError("out of memory; take a smaller model")


@hookimpl
def register_backends(register):
    register("scripted", create)
    register("failing", fail)
"""


@pytest.fixture
async def model() -> AsyncIterator[LocalModel]:
    async with enginebay.open(DEMO_MODEL, options={"threads": 1}) as model:
        yield model


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a plugin, where the tests run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "scripts.py").write_text(PLUGIN)
    return tmp_path


def test_the_script_of_the_guide() -> None:
    [script] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    command = [sys.executable, "-W", "error", "-c", script]
    ran = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    sum, call, *story = ran.stdout.splitlines()
    assert sum.startswith("2 + 3 = 5. ")
    assert call == 'get_weather {"city": "Paris"}'
    assert len("".join(story)) > 20


async def test_answers_are_those_of_the_server(demo: Server, model: LocalModel) -> None:
    """Reasoning, content, tool calls, finish reasons and usage."""
    for body in (
        SUM,
        {"messages": QUESTION, "tools": [WEATHER], "temperature": 0},
        {**SUM, "logprobs": True, "top_logprobs": 2, "max_tokens": 4, "n": 2, "seed": 1},
        {**SUM, "response_format": {"type": "json_object"}, "max_tokens": 20},
    ):
        answered = demo.http.post("/v1/chat/completions", json=body)
        assert answered.status_code == 200, answered.text
        expected = answered.json()
        own = (await model.chat(**body)).model_dump(mode="json", exclude_unset=True)
        for choice in (*expected["choices"], *own["choices"]):
            for call in choice["message"].get("tool_calls") or ():
                call["id"] = "random"
            for token in (choice["logprobs"] or {}).get("content", ()):
                token["logprob"] = round(token["logprob"], 3)
                for other in token["top_logprobs"]:
                    other["logprob"] = round(other["logprob"], 3)
        assert own["choices"] == expected["choices"]
        for key in ("prompt_tokens", "completion_tokens"):
            assert own["usage"][key] == expected["usage"][key]
        assert own.keys() == expected.keys()


async def test_a_stream_is_the_whole_answer_in_pieces(model: LocalModel) -> None:
    whole = (await model.chat(**SUM)).choices[0].message
    content = reasoning = ""
    usage = None
    async for chunk in model.chat_stream(**SUM, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += choice.delta.reasoning_content or ""
    assert (content, reasoning) == (whole.content, whole.reasoning_content)
    assert usage
    assert usage.completion_tokens
    text = [chunk async for chunk in model.complete_stream("Once", max_tokens=3, temperature=0)]
    completed = await model.complete("Once", max_tokens=3, temperature=0)
    assert "".join(c.choices[0].text for c in text) == completed.choices[0].text


async def test_one_text_is_a_conversation_and_many_share_the_batch(model: LocalModel) -> None:
    alone = await model.chat("What is 2 + 3?", temperature=0)
    together = await asyncio.gather(*(model.chat(**SUM) for _ in range(4)))
    assert {each.choices[0].message.content for each in together} == {
        alone.choices[0].message.content
    }


async def test_a_stream_that_is_left_ends(model: LocalModel) -> None:
    stream = model.chat_stream("Tell me a story.", max_tokens=500)
    async for _ in stream:
        break
    await stream.aclose()
    assert not list(model._serving.requests)


async def test_errors_are_the_servers(model: LocalModel) -> None:
    with pytest.raises(enginebay.InvalidRequestError) as caught:
        await model.chat([])
    assert caught.value.param == "messages"
    with pytest.raises(enginebay.InvalidRequestError) as caught:
        await model.chat([{"role": "user", "content": 5}])
    assert caught.value.param == "messages[0].content"
    with pytest.raises(enginebay.ContextLengthExceededError):
        await model.chat("a b " * 5000)
    with pytest.raises(enginebay.ModelNotFoundError, match="'other' does not exist"):
        await model.chat("Hi", model="other")
    with pytest.raises(TypeError, match="_stream"):
        await model.chat("Hi", stream=True)
    with pytest.warns(UserWarning, match="without effect: no_such_field"):
        await model.chat("Hi", no_such_field=5, max_tokens=1)
    with pytest.warns(UserWarning, match="max_tokens was lowered to"):
        await model.complete("Hi", max_tokens=100_000, stop=["e", "a"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await model.chat("Hi", max_tokens=1)


async def test_models_that_generate_nothing(tmp_path: Path) -> None:
    """On the real engine: embeddings of length 1, scores, labels, rewards."""
    async with enginebay.open(pooling_models.bert_mean(tmp_path / "embeds")) as model:
        answer = await model.embed(["a cat", "a dog"])
        assert [each.index for each in answer.data] == [0, 1]
        assert isinstance(answer.data[0].embedding, list)
        assert sum(x * x for x in answer.data[0].embedding) == pytest.approx(1)
        with pytest.warns(UserWarning, match="without effect: no_such"):
            await model.embed("a cat", no_such=1)
        with pytest.raises(enginebay.InvalidRequestError, match="input is empty"):
            await model.embed("")
        with pytest.raises(enginebay.InvalidRequestError, match="does not generate text"):
            await model.chat("Hi")
    async with enginebay.open(pooling_models.bert_ranks(tmp_path / "ranks")) as model:
        ranked = await model.rerank("a", ["b", "c", "d"], top_n=2)
        scored = await model.score("a", ["b", "c", "d"])
        best = sorted((each.score for each in scored.data), reverse=True)[:2]
        assert [each.relevance_score for each in ranked.results] == pytest.approx(best)
    async with enginebay.open(pooling_models.modernbert_classes(tmp_path / "classes")) as model:
        [told] = (await model.classify("a cat")).data
        assert sum(told.probs) == pytest.approx(1)
        with pytest.raises(enginebay.WrongModelError):
            await model.reward(["a cat"])
    rewards = pooling_models.qwen3_text(tmp_path / "rewards")
    pooling_models.value_head(rewards)
    async with enginebay.open(rewards) as model:
        first, second = (await model.reward(["a cat", "two dogs"])).scores
        assert first != second
        with pytest.raises(enginebay.WrongModelError):
            await model.chat("Hi")


async def test_a_config_with_several_models(place: Path) -> None:
    config = place / "mine.yml"
    entries = "".join(f"  - {{name: {name}, backend: scripted, path: .}}\n" for name in "ab")
    config.write_text(
        f"models:\n{entries}  - {{name: c, backend: failing, path: ., load: request}}"
    )
    seen: list[tuple[str, str]] = []

    def report(name: str, stage: str, fraction: float) -> None:
        seen.append((name, stage))

    async with enginebay.open(config, report_progress=report) as model:
        assert model.names == ["a", "b", "c"]
        for name, expected in ((None, "Hello, a"), ("b", "Hello, b")):
            message = (await model.chat("Hi", model=name)).choices[0].message
            assert (message.content, message.reasoning_content) == (expected, "Hm.")
        with pytest.raises(enginebay.ModelFailedError, match="out of memory"):
            await model.chat("Hi", model="c")
    assert ("b", "ready") in seen


async def test_what_cannot_be_opened(place: Path) -> None:
    (place / "bad.yml").write_text("models: [{name: a}]")
    for path, message in (
        (place / "nothing", "there is no file or folder"),
        (place / "nothing.yml", "nothing.yml"),
        (place / "bad.yml", "backend"),
        (place, "no backend recognises"),
    ):
        with pytest.raises(enginebay.ConfigError, match=message):
            async with enginebay.open(path):
                pass
    with pytest.raises(enginebay.ModelFailedError, match="out of memory; take a smaller model"):
        async with enginebay.open(place, backend="failing"):
            pass
    with pytest.raises(enginebay.ConfigError, match="no_such"):
        async with enginebay.open(DEMO_MODEL, backend="hf", options={"no_such": 1}):
            pass
    with pytest.raises(ValueError, match="is a config file"):
        async with enginebay.open(place / "bad.yml", backend="hf"):
            pass
