"""Real engines under any traffic: each answer is the one the request gets alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from demo.to_gguf import convert
from enginebay import GenerationRequest
from enginebay.engine.batching.engine import BatchingEngine
from tests.backends import llamacpp, tiny
from tests.drafting import drafts_pay
from tests.effort import examples, some
from tests.run import Run

CONTEXT = 256
PREFIXES: list[list[int]] = [[], list(range(10, 90)), [7, 8, 9] * 12]
ENGINES: dict[str, dict[str, Any]] = {
    "hf": {},
    "hf with little memory": {"cache_tokens": CONTEXT, "prefill_tokens": 16},
    "hf guessing": {"prompt_lookup": 3, "cache_tokens": CONTEXT},
    "hf drafting": {"draft_model": ".", "draft_tokens": 3},
    "hf padded": {"batching": "padded", "max_batch_size": 4},
    "llamacpp": {"kv_unified": True, "prefill_tokens": 16},
    "llamacpp with little memory": {"kv_unified": True, "cache_tokens": CONTEXT},
    "llamacpp with parts": {"kv_unified": False, "max_batch_size": 4},
    "llamacpp guessing": {"prompt_lookup": 3},
    "llamacpp drafting": {"draft_model": "draft", "draft_tokens": 3, "kv_unified": False},
}
QUICK = (
    "hf with little memory",
    "hf guessing",
    "llamacpp drafting",
    "hf padded",
    "llamacpp with little memory",
)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., BatchingEngine[Any, Any]]:
    """`make("llamacpp" or "hf", options)`: an engine over the same random weights."""
    folder = tiny.make_model(tmp_path_factory.mktemp("traffic") / "hf", num_attention_heads=4)
    gguf = folder.parent / "model.gguf"
    convert(folder, gguf, "f32")

    def load(name: str, **options: Any) -> BatchingEngine[Any, Any]:
        if "draft_model" in options:
            options["draft_model"] = str(folder if name.startswith("hf") else gguf)
        if name.startswith("hf"):
            return tiny.load(folder, **options)
        exact = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attention": "off"}
        return llamacpp.load(gguf, context_length=CONTEXT, **exact, **options)

    return load


@pytest.fixture(scope="module", params=some(ENGINES, QUICK))
def engines(
    request: pytest.FixtureRequest, make: Callable[..., BatchingEngine[Any, Any]]
) -> Iterator[tuple[BatchingEngine[Any, Any], BatchingEngine[Any, Any]]]:
    """An engine for all requests together, and one for each alone."""
    kind = request.param.split()[0]
    together, alone = make(request.param, **ENGINES[request.param]), make(kind)
    if "guessing" in request.param or "drafting" in request.param:
        drafts_pay(together)
    yield together, alone
    together.close()
    alone.close()


@st.composite
def traffic(draw: st.DrawFn) -> list[tuple[int, GenerationRequest, int | None]]:
    """Requests, the steps before each, and after how many more it is aborted, if at all."""
    arrivals = []
    for number in range(draw(st.integers(1, 6))):
        tail = draw(st.lists(st.integers(4, 300), min_size=1, max_size=20))
        sampled = draw(st.booleans())
        item = tiny.request(
            draw(st.sampled_from(PREFIXES)) + tail,
            id=str(number),
            n=draw(st.integers(1, 3)),
            max_tokens=draw(st.integers(1, 40)),
            temperature=0.8 if sampled else 0.0,
            top_p=0.9 if sampled else 1.0,
            seed=number,
            repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3])),
        )
        gone = draw(st.one_of(st.none(), st.none(), st.integers(0, 8)))
        arrivals.append((draw(st.integers(0, 6)), item, gone))
    return arrivals


@examples(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arrivals=traffic())
def test_traffic_never_changes_an_answer(
    engines: tuple[BatchingEngine[Any, Any], BatchingEngine[Any, Any]],
    arrivals: list[tuple[int, GenerationRequest, int | None]],
) -> None:
    together, alone = engines
    rounds = isinstance(together, llamacpp.LlamaCppEngine)
    if rounds:
        greedy = {"temperature": 0.0, "repetition_penalty": 1.0, "logprobs": 2}
        arrivals = [
            (wait, replace(item, sampling=replace(item.sampling, **greedy)), gone)
            for wait, item, gone in arrivals
        ]
    run = Run(together)
    for wait, item, gone in arrivals:
        run.steps(wait).add(item)
        if gone is not None:
            run.steps(gone)
            run.abort(item.request_id)
    run.finish()
    assert not run.errors
    assert not together._requests
    for _, item, gone in arrivals:
        if gone is None:
            # A salt of its own keeps the reference from remembering anything.
            reference = Run(
                alone, replace(item, cache_salt=f"{id(run)} {item.request_id}")
            ).finish()
            for index in range(item.n):
                expected = reference.token_ids(item.request_id, index)
                actual = run.token_ids(item.request_id, index)
                assert actual == expected or (rounds and near_tie(reference, item, actual))


def near_tie(reference: Run, item: GenerationRequest, actual: list[int]) -> bool:
    """Whether an answer leaves the reference where two tokens are as good as equally likely.

    llama.cpp's kernels round differently for batches of different sizes.
    """
    expected = reference.token_ids(item.request_id)
    at = next(i for i, pair in enumerate(zip(actual, expected, strict=True)) if len(set(pair)) > 1)
    entries = [e for d in reference.deltas[item.request_id, 0] for e in d.logprobs or ()]
    likeliest, second = entries[at].top
    return second.token_id == actual[at] and likeliest.logprob - second.logprob < 1e-3
