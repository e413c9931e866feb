"""Thought ended by force on a real model: the demo model, by transformers and by llama.cpp."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.to_gguf import convert
from enginebay import Engine, GenerationRequest, ReasoningBudget, SamplingParams
from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from tests.backends import llamacpp
from tests.backends.tiny import load as load_hf
from tests.run import Run
from tests.support import DEMO_MODEL, Server, serve

PROMPT = "<|im_start|>user\nWhat is 123 + 456?<|im_end|>\n<|im_start|>assistant\n<think>\n"
ASKED: Any = [{"role": "user", "content": "What is 123 + 456?"}]


@pytest.fixture(scope="module")
def demo_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("gguf") / "demo.gguf"
    convert(DEMO_MODEL, target, "f16")
    return target


@pytest.fixture(scope="module", params=["hf", "llamacpp"])
def engine(request: pytest.FixtureRequest, demo_gguf: Path) -> Iterator[Engine]:
    made = load_hf(DEMO_MODEL) if request.param == "hf" else llamacpp.load(demo_gguf)
    yield made
    made.close()


def asked(engine: Engine, tokens: int | None, id: str = "r", **fields: Any) -> GenerationRequest:
    closing = tuple(engine.tokenize("</think>", add_special_tokens=False))
    budget = None
    if tokens is not None:
        budget = ReasoningBudget(
            tokens=tokens,
            start="<think>",
            end="</think>",
            close_token_ids=closing,
            starts_inside=True,
        )
    n = fields.pop("n", 1)
    params = {"temperature": 0.0, "max_tokens": 60, **fields}
    return GenerationRequest(
        request_id=id,
        prompt_token_ids=tuple(engine.tokenize(PROMPT, add_special_tokens=False)),
        sampling=SamplingParams(reasoning_budget=budget, **params),
        n=n,
    )


def test_thought_ends_at_the_budget(engine: Engine) -> None:
    free = Run(engine, asked(engine, None)).finish().token_ids()
    [end] = engine.tokenize("</think>", add_special_tokens=False)
    thought = free.index(end)
    assert thought > 4
    for tokens in (0, 1, 4):
        run = Run(engine, asked(engine, tokens)).finish()
        token_ids = run.token_ids()
        assert token_ids[: tokens + 1] == [*free[:tokens], end]
        assert len(token_ids) > tokens + 1
        assert run.text().count("</think>") == 1
    assert Run(engine, asked(engine, thought + 1)).finish().token_ids() == free


def test_what_comes_behind_is_what_the_model_says_after_it(engine: Engine) -> None:
    forced = Run(engine, asked(engine, 3, max_tokens=20)).finish().token_ids()
    item = asked(engine, None, max_tokens=16)
    prompt = (*item.prompt_token_ids, *forced[:4])
    plain = GenerationRequest(request_id="p", prompt_token_ids=prompt, sampling=item.sampling)
    assert Run(engine, plain).finish().token_ids("p") == forced[4:20]


def test_choices_and_company(engine: Engine) -> None:
    [end] = engine.tokenize("</think>", add_special_tokens=False)
    run = Run(
        engine,
        asked(engine, 2, "a", n=3, temperature=1.0, seed=7, ignore_eos=True, max_tokens=8),
        asked(engine, 5, "b", ignore_eos=True, max_tokens=8),
        asked(engine, None, "c", max_tokens=8),
    ).finish()
    for index in range(3):
        token_ids = run.token_ids("a", index)
        assert end in token_ids[:3]
        assert len(token_ids) == 8
    assert run.token_ids("b")[5] == end


@pytest.mark.parametrize("tokens", [None, 50])
def test_thought_ends_when_it_is_told_to(engine: Engine, tokens: int | None) -> None:
    # OPS-8
    [end] = engine.tokenize("</think>", add_special_tokens=False)
    item = asked(engine, tokens, n=2, temperature=1.0, seed=7)
    budget = asked(engine, 0).sampling.reasoning_budget
    assert budget
    run = Run(engine, item)
    run.steps(4)
    said = [run.token_ids("r", index) for index in range(2)]
    thinking = sum(end not in each for each in said)
    assert thinking
    assert engine.end_reasoning("r", budget) == thinking
    assert engine.end_reasoning("unknown", budget) == 0
    run.finish()
    for index, before in enumerate(said):
        if end not in before:
            assert run.token_ids("r", index)[: len(before) + 1] == [*before, end]
    assert engine.end_reasoning("r", budget) == 0  # it has ended


def test_logprobs_and_penalties_see_forced_tokens(engine: Engine) -> None:
    [end] = engine.tokenize("</think>", add_special_tokens=False)
    item = asked(engine, 2, logprobs=2, repetition_penalty=1.3, max_tokens=6)
    run = Run(engine, item).finish()
    entries = [entry for delta in run.deltas["r", 0] for entry in delta.logprobs or ()]
    assert [entry.token_id for entry in entries] == run.token_ids()[: len(entries)]
    assert entries[2].token_id == end
    assert entries[2].token == "</think>"
    assert entries[2].logprob < entries[2].top[0].logprob <= 0


@pytest.fixture(scope="module", params=["hf", "llamacpp"])
def server(request: pytest.FixtureRequest, demo_gguf: Path) -> Iterator[Server]:
    paths = {"hf": DEMO_MODEL, "llamacpp": demo_gguf}
    model = {
        "name": "demo",
        "backend": request.param,
        "path": str(paths[request.param]),
        "isolation": "thread",
        "options": {"threads": 1} | ({"device": "cpu"} if request.param == "hf" else {}),
    }
    with serve(Config.model_validate({"models": [model]}), Plugins()) as running:
        yield running


def test_over_http(server: Server) -> None:
    def answer(**body: Any) -> Any:
        return server.openai.chat.completions.create(
            model="demo", messages=ASKED, temperature=0, max_tokens=60, extra_body=body
        )

    free = answer(enable_thinking=True)
    short = answer(enable_thinking=True, reasoning_budget=4)
    spent = short.usage.completion_tokens_details.reasoning_tokens
    assert spent == 5  # and the tag
    assert free.usage.completion_tokens_details.reasoning_tokens > spent
    thought = short.choices[0].message.reasoning_content
    assert free.choices[0].message.reasoning_content.startswith(thought)
    assert short.choices[0].message.content
    none = answer(enable_thinking=True, reasoning_budget=0)
    assert getattr(none.choices[0].message, "reasoning_content", None) is None
