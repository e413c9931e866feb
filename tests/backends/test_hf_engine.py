"""The engine against transformers' own `generate`: rows, choices, seeds, logprobs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from enginebay import BackendUnavailableError
from enginebay.engine.batching.runner import Chunk
from enginebay.testing import check_backend
from enginebay_hf.engine import HFEngine
from enginebay_hf.native.runner import NativeRunner
from enginebay_hf.packed.runner import PackedRunner
from tests.backends.conftest import assert_empty
from tests.backends.tiny import (
    FAMILIES,
    PROMPTS,
    VOCAB_SIZE,
    Run,
    greedy_reference,
    load,
    make_model,
    request,
)
from tests.drafting import drafts_pay
from tests.effort import examples
from tests.support import DEMO_MODEL

# Greedy decoding is that of transformers, whoever joins and leaves.


def run_mid_flight(engine: HFEngine) -> Run:
    """Rows of different lengths join and leave while others run."""
    run = Run(engine)
    run.add(request(PROMPTS[1], id="b", max_tokens=18))
    run.steps(4)
    run.add(request(PROMPTS[0], id="a", max_tokens=20))
    run.steps(3)
    run.add(request(PROMPTS[2], id="c", max_tokens=20))
    run.add(request(PROMPTS[2], id="short", max_tokens=2))
    run.add(request([*PROMPTS[1], *PROMPTS[0]], id="gone", n=2, max_tokens=50))
    run.steps(9)
    assert run.deltas["gone", 1]
    run.abort("gone")
    return run.finish()


NOT_PACKED = {"lfm2", "qwen3_next", "mamba2", "bloom"}


@pytest.mark.parametrize("batching", ["auto", "padded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate_while_rows_join_and_leave(
    family: str, batching: str, tmp_path: Path
) -> None:
    engine = load(make_model(tmp_path, family), batching=batching)
    assert engine._runner.memory.slots >= 16, "the probe found no batch"
    packed = batching == "auto" and family not in NOT_PACKED
    assert isinstance(engine._runner, PackedRunner if packed else NativeRunner)
    run = run_mid_flight(engine)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for id, prompt, count in (("a", PROMPTS[0], 20), ("b", PROMPTS[1], 18), ("c", PROMPTS[2], 20)):
        assert run.token_ids(id) == greedy_reference(reference, prompt, count)
    assert_empty(engine)


ARRIVALS = st.lists(
    st.tuples(
        st.lists(st.integers(4, VOCAB_SIZE - 1), min_size=1, max_size=20),  # prompt
        st.integers(1, 8),  # max_tokens
        st.integers(0, 4),  # steps until the next one arrives
    ),
    min_size=1,
    max_size=5,
)


@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arrivals=ARRIVALS)
def test_company_never_changes_an_answer(
    engine: HFEngine, model: PreTrainedModel, arrivals: list[tuple[list[int], int, int]]
) -> None:
    run = Run(engine)
    for number, (prompt, length, steps) in enumerate(arrivals):
        run.add(request(prompt, id=str(number), max_tokens=length))
        run.steps(steps)
    run.finish()
    for number, (prompt, length, _) in enumerate(arrivals):
        assert run.token_ids(str(number)) == greedy_reference(model, prompt, length)


def test_greedy_equals_generate_on_the_demo_model() -> None:
    engine = load(DEMO_MODEL)
    reference = AutoModelForCausalLM.from_pretrained(DEMO_MODEL).eval()
    reference.to(engine._runner._model.dtype)
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    texts = ["Hello", "What is the capital of France?", "Once upon a time there was a"]
    prompts = {text: tokenizer.encode(text) for text in texts}
    run = Run(engine)
    for text, prompt in prompts.items():
        run.add(request(prompt, id=text, max_tokens=16))
        run.steps(2)
    run.finish()
    for text, prompt in prompts.items():
        assert run.token_ids(text) == greedy_reference(reference, prompt, 16)


@pytest.mark.gpu
@pytest.mark.hf
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate_on_a_gpu(family: str, tmp_path: Path) -> None:
    engine = load(make_model(tmp_path, family), device="cuda")
    run = run_mid_flight(engine)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path).eval().to("cuda")
    assert run.token_ids("a") == greedy_reference(reference, PROMPTS[0], 20)
    company = Run(engine, request(PROMPTS[1], temperature=1.0, top_p=0.9, seed=1, logprobs=2))
    assert len(company.finish().token_ids()) == 12


async def test_keeps_the_promises_of_the_contract(tiny_llama: Path) -> None:
    await check_backend(lambda: load(tiny_llama), prompt="the quick brown fox")


# Choices.


class CountingRunner:
    """Counts what runs through the model."""

    def __init__(self, engine: HFEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prefills: list[int] = []
        self.decodes: list[int] = []
        run = engine._runner.run

        def count(chunks: list[Chunk]) -> Any:
            decoded = [chunk for chunk in chunks if len(chunk.token_ids) == 1]
            self.decodes += [len(decoded)] if decoded else []
            self.prefills += [len(c.token_ids) for c in chunks if len(c.token_ids) > 1]
            return run(chunks)

        monkeypatch.setattr(engine._runner, "run", count)


@pytest.mark.parametrize("batching", ["packed", "padded"])
def test_eight_choices_from_one_prefill(
    tiny_llama: Path, batching: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(tiny_llama, batching=batching)
    forwards = CountingRunner(engine, monkeypatch)
    run = Run(engine, request(PROMPTS[1], n=8, temperature=1.0, seed=5, max_tokens=6)).finish()
    assert forwards.prefills == [len(PROMPTS[1])]
    assert forwards.decodes == [8] * 5
    answers = [run.token_ids(index=index) for index in range(8)]
    assert len({tuple(answer) for answer in answers}) == 8
    assert [delta.prefill_tokens for delta in run.deltas["r", 0]] == [len(PROMPTS[1])] + [0] * 5
    assert all(d.prefill_tokens == 0 for index in range(1, 8) for d in run.deltas["r", index])


def test_greedy_choices_equal_generate(engine: HFEngine, model: PreTrainedModel) -> None:
    run = Run(engine, request(PROMPTS[0], n=2)).finish()
    expected = greedy_reference(model, PROMPTS[0], 12)
    assert [run.token_ids(index=0), run.token_ids(index=1)] == [expected, expected]


def test_choices_end_one_by_one(engine: HFEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    forwards = CountingRunner(engine, monkeypatch)
    stops = range(4, VOCAB_SIZE, 12)  # some choice meets one of them before another
    sampling: dict[str, Any] = {"temperature": 1.5, "seed": 3, "stop_token_ids": tuple(stops)}
    prompt = [77, 78, 79, 80]  # one that nobody has asked before
    run = Run(engine, request(prompt, n=4, max_tokens=40, **sampling)).finish()
    lengths = sorted(len(run.token_ids(index=index)) for index in range(4))
    assert lengths[0] < lengths[-1]
    steps = range(1, lengths[-1])
    assert forwards.decodes == [sum(length > step for length in lengths) for step in steps]


def test_more_choices_than_rows_come_one_after_another(
    tiny_llama: Path, model: PreTrainedModel
) -> None:
    run = Run(load(tiny_llama, max_batch_size=3), request(PROMPTS[0], n=7)).finish()
    expected = greedy_reference(model, PROMPTS[0], 12)
    assert [run.token_ids(index=index) for index in range(7)] == [expected] * 7


def test_newcomers_do_not_stop_running_rows(engine: HFEngine) -> None:
    run = Run(engine, request(PROMPTS[0], id="running", max_tokens=40)).steps(3)
    for number in range(6):
        run.add(request(PROMPTS[1], id=str(number), max_tokens=30))
    before = len(run.token_ids("running"))
    run.steps(4)
    assert len(run.token_ids("running")) == before + 4
    assert all(run.token_ids(str(number)) for number in range(6))
    run.finish()


def test_a_repeated_prompt_is_remembered(tiny_llama: Path, model: PreTrainedModel) -> None:
    engine = load(tiny_llama)
    prompt = list(range(4, 104))
    first, second = (Run(engine, request(prompt)).finish() for _ in range(2))
    assert first.deltas["r", 0][0].cached_tokens == 0
    assert second.deltas["r", 0][0].cached_tokens == 99
    assert first.token_ids() == second.token_ids() == greedy_reference(model, prompt, 12)


def test_little_memory_is_shared_by_giving_way(tiny_llama: Path, model: PreTrainedModel) -> None:
    engine = load(tiny_llama, cache_tokens=256)
    items = [
        request([*PROMPTS[1], number], id=str(number), max_tokens=100) for number in range(4, 10)
    ]
    run = Run(engine, *items).finish()
    for item in items:
        expected = greedy_reference(model, list(item.prompt_token_ids), 100)
        assert run.token_ids(item.request_id) == expected


def test_guessing_from_the_prompt_changes_nothing(tiny_llama: Path, model: PreTrainedModel) -> None:
    engine = load(tiny_llama, prompt_lookup=4)
    drafts_pay(engine)
    prompt = greedy_reference(model, PROMPTS[0], 40)
    expected = greedy_reference(model, prompt, 60)
    run = Run(engine, request(prompt, max_tokens=60)).finish()
    assert run.token_ids() == expected


def test_a_draft_model_changes_no_token_and_saves_steps(
    tiny_llama: Path, model: PreTrainedModel
) -> None:
    # ENG-7
    engine = load(tiny_llama, max_batch_size=4, draft_model=str(tiny_llama), draft_tokens=3)
    drafts_pay(engine)
    items = [request(PROMPTS[i % 3], id=str(i), max_tokens=30) for i in range(6)]
    run = Run(engine, *items)
    steps = 0
    while not all(run.is_finished(item.request_id) for item in items):
        run.steps(1)
        steps += 1
    for item in items:
        expected = greedy_reference(model, list(item.prompt_token_ids), 30)
        assert run.token_ids(item.request_id) == expected
    assert steps < 50
    stats = engine.stats()
    assert stats.accepted
    assert stats.accepted > 0.9 * (stats.drafted or 0)
    assert_empty(engine)


def test_a_draft_model_that_is_always_wrong_changes_no_token(
    tiny_llama: Path, model: PreTrainedModel, tmp_path: Path
) -> None:
    other = make_model(tmp_path, "gpt2")
    engine = load(tiny_llama, draft_model=str(other), max_batch_size=4)
    drafts_pay(engine)
    items = [request(PROMPTS[i % 3], id=str(i), max_tokens=20) for i in range(5)]
    run = Run(engine, *items).finish()
    for item in items:
        expected = greedy_reference(model, list(item.prompt_token_ids), 20)
        assert run.token_ids(item.request_id) == expected


def test_draft_models_that_do_not_go_with_the_model(tiny_llama: Path, tmp_path: Path) -> None:
    recurrent = make_model(tmp_path / "recurrent", "mamba2")
    for path, problem in (
        (tmp_path / "missing", "missing"),
        (DEMO_MODEL, "vocabulary"),
        (recurrent, "rolled back"),
    ):
        with pytest.raises(BackendUnavailableError, match=problem) as caught:
            load(tiny_llama, draft_model=str(path))
        assert str(path) in caught.value.message
    with pytest.raises(ValueError, match="not both"):
        load(tiny_llama, draft_model=str(tiny_llama), prompt_lookup=3)


# Seeds.


def test_a_seed_gives_the_same_tokens_alone_and_in_company(engine: HFEngine) -> None:
    sampling: dict[str, Any] = {"temperature": 1.2, "top_p": 0.95, "seed": 11, "max_tokens": 15}
    alone = Run(engine, request(PROMPTS[0], n=2, **sampling)).finish()
    company = Run(engine, request(PROMPTS[1], id="x", temperature=0.8, max_tokens=30)).steps(3)
    company.add(request(PROMPTS[0], n=2, **sampling))
    company.steps(4)
    company.add(request(PROMPTS[2], id="y", top_k=5, temperature=2.0, seed=11))
    company.finish()
    for index in (0, 1):
        assert company.token_ids(index=index) == alone.token_ids(index=index)
    assert alone.token_ids(index=0) != alone.token_ids(index=1)


def test_without_a_seed_answers_differ(engine: HFEngine) -> None:
    answers = {
        tuple(Run(engine, request(PROMPTS[0], temperature=1.5)).finish().token_ids())
        for _ in range(3)
    }
    assert len(answers) == 3


# Logprobs.


def test_logprobs_equal_those_of_transformers(engine: HFEngine, model: PreTrainedModel) -> None:
    sampling: dict[str, Any] = {
        "temperature": 0.7,
        "top_k": 20,
        "seed": 2,
        "repetition_penalty": 1.3,
        "logit_bias": {60: 5.0},
    }
    company = Run(engine, request(PROMPTS[2], id="x", max_tokens=30)).steps(2)
    company.add(request(PROMPTS[1], logprobs=4, max_tokens=10, **sampling))
    run = company.finish()
    token_ids = run.token_ids()
    entries = [entry for delta in run.deltas["r", 0] for entry in delta.logprobs or ()]
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPTS[1] + token_ids])).logits[0].float()
    expected = logits[len(PROMPTS[1]) - 1 : -1].log_softmax(-1)
    assert [entry.token_id for entry in entries] == token_ids
    for entry, row in zip(entries, expected, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token_id].item(), abs=1e-4)
        values, ids = row.topk(4)
        assert [top.token_id for top in entry.top] == ids.tolist()
        assert [top.logprob for top in entry.top] == pytest.approx(values.tolist(), abs=1e-4)
        assert entry.token == engine.detokenize([entry.token_id])
        assert [top.token for top in entry.top] == [engine.detokenize([i]) for i in ids.tolist()]
    assert all(delta.logprobs is None for delta in run.deltas["x", 0])


def test_zero_top_logprobs(engine: HFEngine) -> None:
    run = Run(engine, request(PROMPTS[0], logprobs=0, max_tokens=3)).finish()
    entries = [entry for delta in run.deltas["r", 0] for entry in delta.logprobs or ()]
    assert [entry.top for entry in entries] == [()] * 3
