"""The engine over the library's dynamic generator: choices, company, pages, queue, aborts."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from enginebay.testing import check_backend
from tests.backends.exllamav2_loading import LoadExLlamaV2
from tests.backends.exllamav2_loading import load_exllamav2 as load_exllamav2
from tests.backends.tiny import greedy_reference
from tests.effort import examples
from tests.run import Run, request
from tests.support import DEMO_MODEL

TEXTS = (
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is the weather in Rome?<|im_end|>\n<|im_start|>assistant\n",
)
EOS = 2


@pytest.fixture(scope="module")
def shared_engine(load_exllamav2: LoadExLlamaV2) -> Any:
    return load_exllamav2(DEMO_MODEL)


@pytest.fixture
def engine(shared_engine: Any) -> Any:
    """An engine that must be empty before and after every test."""
    assert_empty(shared_engine)
    yield shared_engine
    assert_empty(shared_engine)


def assert_empty(engine: Any) -> None:
    assert not engine._requests
    assert not engine._scheduler.running
    assert not engine._scheduler.waiting
    generator = engine._scheduler.generator
    assert not generator.num_remaining_jobs()
    assert not generator.referenced_pages
    assert len(generator.unreferenced_pages) == generator.max_pages


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(DEMO_MODEL).float().eval()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    return [tokenizer.encode(text) for text in TEXTS]


@pytest.fixture(scope="module")
def long_prompt(prompts: list[list[int]]) -> list[int]:
    """Several pages, and more than one chunk of prefill."""
    return (prompts[0] * 60)[:700] + prompts[2]


@pytest.mark.thorough
async def test_check_backend(load_exllamav2: LoadExLlamaV2) -> None:
    await check_backend(lambda: load_exllamav2(DEMO_MODEL), prompt=TEXTS[2])


# Greedy decoding is that of transformers, whoever joins and leaves.


def test_greedy_equals_generate_while_others_join_and_leave(
    engine: Any, model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    run = Run(engine, request(prompts[0], id="0", max_tokens=30)).steps(4)
    run.add(request(prompts[1], id="1", max_tokens=24))
    run.steps(2)
    run.add(request(prompts[2], id="2", max_tokens=24))
    run.add(request(prompts[2], id="short", max_tokens=2))
    run.add(request(prompts[1], id="gone", n=2, max_tokens=50))
    run.steps(9)
    assert run.deltas["gone", 1]
    run.abort("gone")
    run.finish()
    for number, count in enumerate((30, 24, 24)):
        expected = greedy_reference(model, prompts[number], count)
        assert run.token_ids(str(number)) == expected


def test_text_and_ends(engine: Any, prompts: list[list[int]]) -> None:
    run = Run(engine, request(prompts[0], ignore_eos=False, max_tokens=200)).finish()
    assert run.token_ids()[-1] == EOS
    assert run.text() == engine.detokenize(run.token_ids()[:-1])
    assert run.last().finish_reason == "stop"
    short = Run(engine, request(prompts[0], max_tokens=3)).finish()
    assert short.last().finish_reason == "length"
    assert short.token_ids() == run.token_ids()[:3]


ARRIVALS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 8), st.integers(1, 8), st.integers(0, 4)),
    min_size=1,
    max_size=5,
)


@examples(8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arrivals=ARRIVALS)
def test_company_never_changes_an_answer(
    engine: Any, prompts: list[list[int]], arrivals: list[tuple[int, int, int, int]]
) -> None:
    items = [
        request(prompts[which][cut:], id=str(number), max_tokens=length)
        for number, (which, cut, length, _) in enumerate(arrivals)
    ]
    run = Run(engine)
    for item, (*_, steps) in zip(items, arrivals, strict=True):
        run.add(item)
        run.steps(steps)
    run.finish()
    for item in items:
        alone = Run(engine, item).finish()
        assert run.token_ids(item.request_id) == alone.token_ids(item.request_id)


# Choices and seeds.


def test_choices_share_one_prefill(engine: Any, long_prompt: list[int]) -> None:
    prompt = [77, *long_prompt]  # one that nobody has asked before
    run = Run(engine, request(prompt, n=4, max_tokens=4)).finish()
    first = [run.deltas["r", index][0] for index in range(4)]
    assert [delta.prefill_tokens for delta in first] == [len(prompt), 0, 0, 0]
    assert len({tuple(run.token_ids(index=index)) for index in range(4)}) == 1


def test_more_choices_than_run_together(engine: Any, prompts: list[list[int]]) -> None:
    sampling = {"temperature": 5.0, "seed": 3, "max_tokens": 5}
    run = Run(engine, request(prompts[0], n=20, **sampling)).finish()
    answers = [tuple(run.token_ids(index=index)) for index in range(20)]
    assert len(set(answers)) > 10
    accounted = [d.prefill_tokens + d.cached_tokens for ds in run.deltas.values() for d in ds]
    assert sum(accounted) == len(prompts[0])


def test_a_seed_gives_the_same_tokens_alone_and_in_company(
    engine: Any, prompts: list[list[int]]
) -> None:
    sampling: dict[str, Any] = {"temperature": 1.2, "top_p": 0.95, "seed": 11, "max_tokens": 15}
    alone = Run(engine, request(prompts[0], n=2, **sampling)).finish()
    company = Run(engine, request(prompts[1], id="x", temperature=0.8, max_tokens=30)).steps(3)
    company.add(request(prompts[0], n=2, **sampling))
    company.steps(4)
    company.add(request(prompts[2], id="y", top_k=5, temperature=2.0, seed=11))
    company.finish()
    for index in (0, 1):
        assert company.token_ids(index=index) == alone.token_ids(index=index)
    assert alone.token_ids(index=0) != alone.token_ids(index=1)


def test_without_a_seed_answers_differ(engine: Any, prompts: list[list[int]]) -> None:
    item = request(prompts[0], temperature=2.0)
    assert len({tuple(Run(engine, item).finish().token_ids()) for _ in range(3)}) == 3


# Logprobs are the model's own.


def test_logprobs_equal_those_of_transformers(
    engine: Any, model: PreTrainedModel, prompts: list[list[int]]
) -> None:
    sampling = {
        "temperature": 0.7,
        "top_k": 20,
        "seed": 2,
        "repetition_penalty": 1.3,
        "logit_bias": {60: 5.0},
    }
    company = Run(engine, request(prompts[2], id="x", max_tokens=30)).steps(2)
    company.add(request(prompts[1], logprobs=4, max_tokens=10, **sampling))
    run = company.finish()
    token_ids = run.token_ids()
    entries = [entry for delta in run.deltas["r", 0] for entry in delta.logprobs or ()]
    with torch.inference_mode():
        logits = model(torch.tensor([prompts[1] + token_ids])).logits[0].float()
    expected = logits[len(prompts[1]) - 1 : -1].log_softmax(-1)
    assert [entry.token_id for entry in entries] == token_ids
    for entry, row in zip(entries, expected, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token_id].item(), abs=0.01)
        values, _ = row.topk(4)
        assert [top.logprob for top in entry.top] == pytest.approx(values.tolist(), abs=0.03)
        assert entry.token == engine.detokenize([entry.token_id])
    assert all(delta.logprobs is None for delta in run.deltas["x", 0])


# Pages of the cache.


def test_a_repeated_prompt_is_remembered(engine: Any, long_prompt: list[int]) -> None:
    prompt = [78, *long_prompt]
    first, second = (Run(engine, request(prompt)).finish() for _ in range(2))
    assert first.deltas["r", 0][0].cached_tokens == 0
    assert second.deltas["r", 0][0].cached_tokens == len(prompt) - 1
    assert second.deltas["r", 0][0].prefill_tokens == 1
    assert first.token_ids() == second.token_ids()
    stats = engine.stats()
    assert stats.cache_hits >= len(prompt) - 1
    assert stats.cache_queries >= 2 * len(prompt)
    assert (stats.running, stats.waiting, stats.kv_used) == (0, 0, 0)


def test_a_conversation_goes_on_where_it_was(engine: Any, long_prompt: list[int]) -> None:
    prompt = [79, *long_prompt]
    said = Run(engine, request(prompt, max_tokens=60)).finish().token_ids()
    longer = [*prompt, *said]
    run = Run(engine, request(longer)).finish()
    assert run.deltas["r", 0][0].cached_tokens >= len(longer) - 2


@pytest.mark.parametrize("prompt_tokens", [240, 300])
def test_only_the_same_salt_shares(
    engine: Any, prompts: list[list[int]], long_prompt: list[int], prompt_tokens: int
) -> None:
    def ask(salt: str | None) -> tuple[int, list[int]]:
        item = replace(request(prompt, max_tokens=30), cache_salt=salt)
        run = Run(engine, item).finish()
        return run.deltas["r", 0][0].cached_tokens, run.token_ids()

    prompt = [80, prompt_tokens % 256, *long_prompt][:prompt_tokens]
    asked = [ask(salt) for salt in (None, "a", "b", "a", "b", None)]
    cached = [tokens for tokens, _ in asked]
    assert cached == [0, 0, 0, *[len(prompt) - 1] * 3]
    said = asked[0][1]
    assert all(token_ids == said for _, token_ids in asked)
    prompt = [*prompt, *said]  # the answers, too, fill pages that are nobody else's
    assert ask("c")[0] == 0
    assert ask("a")[0] >= len(prompt) - 2


def test_salted_requests_side_by_side(engine: Any, long_prompt: list[int]) -> None:
    """The same tokens fill the same pages at the same time, for three that share nothing."""
    prompt = [81, *long_prompt][:240]
    items = [
        replace(request(prompt, id=str(salt), max_tokens=30), cache_salt=salt)
        for salt in (None, "a", "b")
    ]
    run = Run(engine, *items).finish()
    assert all(run.deltas[str(s), 0][0].cached_tokens == 0 for s in (None, "a", "b"))
    assert run.token_ids("a") == run.token_ids("b") == run.token_ids("None")
    stranger = replace(request([*prompt, *run.token_ids("a")]), cache_salt="c")
    assert Run(engine, stranger).finish().deltas["r", 0][0].cached_tokens == 0


def test_little_memory_is_shared_by_giving_way(
    load_exllamav2: LoadExLlamaV2, engine: Any, long_prompt: list[int]
) -> None:
    small = load_exllamav2(DEMO_MODEL, context_length=512, cache_tokens=512)
    items = [
        replace(request([90 + i, *long_prompt[:235]], id=str(i), max_tokens=40), priority=-i)
        for i in range(3)
    ]
    run = Run(small, *items[:2]).steps(10)
    assert len(small._scheduler.running) == 2
    run.add(items[2])
    run.steps(15)  # each needs a second page now, and there are two: the last one gives way
    assert list(small._scheduler.running) == [small._requests["1"][0]]
    run.finish()
    for item in items:
        alone = Run(engine, item).finish()
        assert run.token_ids(item.request_id) == alone.token_ids(item.request_id)
    assert_empty(small)


def test_an_answer_may_fill_the_whole_cache(
    load_exllamav2: LoadExLlamaV2, prompts: list[list[int]]
) -> None:
    small = load_exllamav2(DEMO_MODEL, context_length=256, cache_tokens=256)
    run = Run(small, request(prompts[0], max_tokens=None), request(prompts[1], id="b")).finish()
    assert len(run.token_ids()) == 256 - len(prompts[0])
    assert run.last().finish_reason == "length"
    assert_empty(small)


# Aborts and the queue.


def test_aborts_in_every_state(engine: Any, long_prompt: list[int]) -> None:
    run = Run(engine)
    prompt = [82, *long_prompt * 2]
    for number in range(8):
        run.add(request([*prompt, number], id=f"running {number}", max_tokens=50))
    run.add(request(prompt, id="queued", max_tokens=50))
    run.steps(1)
    assert engine._scheduler.waiting
    assert not any(run.deltas.values())  # all prefill still
    run.abort("queued")
    for number in range(7):
        run.abort(f"running {number}")
    run.steps(8)
    assert run.deltas["running 7", 0]
    run.abort("running 7")
    engine.abort_request("never heard of")


def test_lower_numbers_start_first(load_exllamav2: LoadExLlamaV2, prompts: list[list[int]]) -> None:
    engine = load_exllamav2(DEMO_MODEL, max_batch_size=1)
    run = Run(engine, request(prompts[0], id="first", max_tokens=4)).steps(1)
    for name, priority in (("late", 5), ("normal", 0), ("early", -1)):
        run.add(replace(request(prompts[1], id=name, max_tokens=2), priority=priority))
    order = []
    while any(not run.is_finished(name) for name in ("late", "normal", "early")):
        run.steps(1)
        order += [n for n in ("late", "normal", "early") if run.deltas[n, 0] and n not in order]
    assert order == ["early", "normal", "late"]
