"""The engine against transformers' own `generate`, and the contract of `Engine`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from backends.hf.engine import HFEngine
from backends.hf.runner import ModelRunner
from core.testing import check_backend
from enginebay import (
    ContextLengthExceededError,
    Delta,
    GenerationRequest,
    InvalidRequestError,
    QueueFullError,
    SamplingParams,
    ServingError,
)
from tests.backends.conftest import assert_empty
from tests.backends.tiny import FAMILIES, VOCAB_SIZE, Run, load, make_model, request

EOS = 1
TOOL_CALL = 3
PROMPTS = [
    [5, 60, 7],
    [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51],
    [200, 9, 200, 9, 200, 9, 30],
]
DEMO = Path(__file__).parents[2] / "demo" / "model"


def greedy_reference(
    model: PreTrainedModel, prompt: list[int], max_tokens: int, **kw: Any
) -> list[int]:
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
        **kw,
    )
    return output[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def model(tiny_llama: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(tiny_llama).eval()


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
    return run.finish()


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate_while_rows_join_and_leave(family: str, tmp_path: Path) -> None:
    engine = load(make_model(tmp_path, family))
    assert engine._limits.max_rows == 16, "the probe found no batch"
    run = run_mid_flight(engine)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for id, prompt, count in (("a", PROMPTS[0], 20), ("b", PROMPTS[1], 18), ("c", PROMPTS[2], 20)):
        assert run.token_ids(id) == greedy_reference(reference, prompt, count)
    assert_empty(engine)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_company_never_changes_an_answer(
    engine: HFEngine, model: PreTrainedModel, data: st.DataObject
) -> None:
    run = Run(engine)
    expected: dict[str, list[int]] = {}
    prompts = st.lists(st.integers(4, VOCAB_SIZE - 1), min_size=1, max_size=20)
    for number in range(data.draw(st.integers(1, 5))):
        prompt, length = data.draw(prompts), data.draw(st.integers(1, 8))
        run.add(request(prompt, id=str(number), max_tokens=length))
        expected[str(number)] = greedy_reference(model, prompt, length)
        run.steps(data.draw(st.integers(0, 4)))
    run.finish()
    assert {id: run.token_ids(id) for id in expected} == expected


@pytest.mark.skipif(not (DEMO / "config.json").exists(), reason="demo model not built")
def test_greedy_equals_generate_on_the_demo_model() -> None:
    engine = load(DEMO)
    reference = AutoModelForCausalLM.from_pretrained(DEMO).eval().to(engine._runner.dtype)
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    texts = ["Hello", "What is the capital of France?", "Once upon a time there was a"]
    prompts = {text: tokenizer.encode(text) for text in texts}
    run = Run(engine)
    for text, prompt in prompts.items():
        run.add(request(prompt, id=text, max_tokens=16))
        run.steps(2)
    run.finish()
    for text, prompt in prompts.items():
        assert run.token_ids(text) == greedy_reference(reference, prompt, 16)


async def test_keeps_the_promises_of_the_contract(tiny_llama: Path) -> None:
    await check_backend(lambda: load(tiny_llama), prompt="the quick brown fox")


# Choices.


class CountingRunner:
    """Counts what runs through the model."""

    def __init__(self, engine: HFEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prefills: list[int] = []
        self.decodes: list[int] = []
        prefill, decode = engine._runner.prefill, engine._runner.decode

        def count_prefill(token_ids: Any) -> Any:
            self.prefills.append(len(token_ids))
            return prefill(token_ids)

        def count_decode(batch: Any, token_ids: Any) -> Any:
            self.decodes.append(len(token_ids))
            return decode(batch, token_ids)

        monkeypatch.setattr(engine._runner, "prefill", count_prefill)
        monkeypatch.setattr(engine._runner, "decode", count_decode)


def test_three_choices_from_one_prefill(engine: HFEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    forwards = CountingRunner(engine, monkeypatch)
    run = Run(engine, request(PROMPTS[1], n=3, temperature=1.0, seed=5, max_tokens=6)).finish()
    assert forwards.prefills == [len(PROMPTS[1])]
    assert forwards.decodes == [3] * 5
    answers = [run.token_ids(index=index) for index in range(3)]
    assert len({tuple(answer) for answer in answers}) == 3
    assert [delta.prefill_tokens for delta in run.deltas["r", 0]] == [len(PROMPTS[1])] + [0] * 5
    assert all(d.prefill_tokens == 0 for index in (1, 2) for d in run.deltas["r", index])


def test_greedy_choices_equal_generate(engine: HFEngine, model: PreTrainedModel) -> None:
    run = Run(engine, request(PROMPTS[0], n=2)).finish()
    expected = greedy_reference(model, PROMPTS[0], 12)
    assert [run.token_ids(index=0), run.token_ids(index=1)] == [expected, expected]


def test_choices_end_one_by_one(engine: HFEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    forwards = CountingRunner(engine, monkeypatch)
    stops = range(4, VOCAB_SIZE, 12)  # some choice meets one of them before another
    sampling: dict[str, Any] = {"temperature": 1.5, "seed": 3, "stop_token_ids": tuple(stops)}
    run = Run(engine, request(PROMPTS[0], n=4, max_tokens=40, **sampling)).finish()
    lengths = sorted(len(run.token_ids(index=index)) for index in range(4))
    assert lengths[0] < lengths[-1]
    steps = range(1, lengths[-1])
    assert forwards.decodes == [sum(length > step for length in lengths) for step in steps]


def test_a_request_waits_for_as_many_rows_as_it_has_choices(tiny_llama: Path) -> None:
    engine = load(tiny_llama, max_batch_size=3)
    run = Run(engine, request(PROMPTS[0], id="one", n=2), request(PROMPTS[1], id="two", n=2))
    run.steps(5)
    assert not run.deltas["two", 0]
    run.finish()
    assert run.token_ids("one") == Run(engine, request(PROMPTS[0], id="one")).finish().token_ids(
        "one"
    )
    assert len(run.token_ids("two", 1)) == 12


def test_newcomers_do_not_stop_running_rows(engine: HFEngine) -> None:
    run = Run(engine, request(PROMPTS[0], id="running", max_tokens=40)).steps(3)
    for number in range(6):
        run.add(request(PROMPTS[1], id=str(number), max_tokens=30))
    before = len(run.token_ids("running"))
    run.steps(12)
    assert len(run.token_ids("running")) == before + 6
    assert all(run.token_ids(str(number)) for number in range(6))
    run.finish()


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


# Text and endings. A model is made to say something by forcing tokens with a script of logits.


@pytest.fixture
def say(engine: HFEngine, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[int]], HFEngine]:
    """`say(token_ids)`: the model prefers these tokens, one after another, in every row."""

    def start(token_ids: list[int]) -> HFEngine:
        def logits(step: int, rows: int) -> torch.Tensor:
            scores = torch.zeros(rows, VOCAB_SIZE)
            scores[:, token_ids[step % len(token_ids)]] = 10.0
            return scores

        runner = engine._runner
        prefill, decode = runner.prefill, runner.decode

        def said_prefill(prompt: Any) -> Any:
            return logits(0, 1), prefill(prompt)[1]

        def said_decode(batch: Any, last: Any) -> Any:
            said = batch.lengths[0] + 1 - len(PROMPTS[0])
            rows = len(batch.lengths)
            decode(batch, last)
            return logits(said, rows)

        monkeypatch.setattr(runner, "prefill", said_prefill)
        monkeypatch.setattr(runner, "decode", said_decode)
        return engine

    return start


def tokens_of(engine: HFEngine, text: str) -> list[int]:
    return engine.tokenize(text, add_special_tokens=False)


def said(engine: HFEngine, **sampling: Any) -> Run:
    return Run(engine, request(PROMPTS[0], **{"ignore_eos": False, **sampling})).finish()


def test_eos_ends_without_text_or_logprob(say: Any) -> None:
    engine = say([75, 76, EOS, 77])
    run = said(engine, logprobs=0)
    assert run.token_ids() == [75, 76, EOS]
    assert run.text() == engine.detokenize([75, 76])
    assert (run.last().finish_reason, run.last().stop_reason) == ("stop", None)
    entries = [entry.token_id for delta in run.deltas["r", 0] for entry in delta.logprobs or ()]
    assert entries == [75, 76]


def test_ignored_eos_goes_on_and_still_has_no_text(say: Any) -> None:
    engine = say([75, EOS, 76])
    run = said(engine, ignore_eos=True, max_tokens=5, logprobs=0)
    assert run.token_ids() == [75, EOS, 76, 75, EOS]
    assert run.text() == engine.detokenize([75, 76, 75])
    assert run.last().finish_reason == "length"


def test_other_special_tokens_are_text(say: Any) -> None:
    run = said(say([75, TOOL_CALL, 76, EOS]))
    assert "<tool_call>" in run.text()


def test_stop_token_id_ends_without_text(say: Any) -> None:
    engine = say([75, TOOL_CALL, 76])
    run = said(engine, stop_token_ids=(TOOL_CALL,), logprobs=0)
    assert run.token_ids() == [75, TOOL_CALL]
    assert run.text() == engine.detokenize([75])
    assert (run.last().finish_reason, run.last().stop_reason) == ("stop", TOOL_CALL)


def test_stop_string_over_token_borders_never_shows(engine: HFEngine, say: Any) -> None:
    token_ids = tokens_of(engine, "the quick brown fox jumps")
    engine = say(token_ids)
    run = said(engine, stop=("own fo", "never"), max_tokens=30, logprobs=0)
    assert run.text() == "the quick br"
    assert (run.last().finish_reason, run.last().stop_reason) == ("stop", "own fo")
    assert not any("own" in delta.text for delta in run.deltas["r", 0])
    entries = [entry for delta in run.deltas["r", 0] for entry in delta.logprobs or ()]
    kept = "".join(entry.token for entry in entries)
    assert kept.startswith("the quick br")
    assert "".join(entry.token for entry in entries[:-1]) in "the quick br"
    assert_empty(engine)


def test_a_held_back_beginning_of_a_stop_string_comes_out_at_the_end(
    engine: HFEngine, say: Any
) -> None:
    token_ids = tokens_of(engine, "the quick")
    run = said(say(token_ids), stop=("quickly",), max_tokens=len(token_ids), logprobs=0)
    assert run.text() == "the quick"
    assert run.last().finish_reason == "length"
    entries = [entry.token_id for delta in run.deltas["r", 0] for entry in delta.logprobs or ()]
    assert entries == token_ids


def test_characters_over_token_borders_are_whole(engine: HFEngine, say: Any) -> None:
    text = "naïve 😀 日本"
    token_ids = tokens_of(engine, text)
    assert len(token_ids) > len(text)
    run = said(say(token_ids), max_tokens=len(token_ids), logprobs=0)
    assert run.text() == text
    assert not any("\ufffd" in delta.text for delta in run.deltas["r", 0])
    entries = [entry.token_id for delta in run.deltas["r", 0] for entry in delta.logprobs or ()]
    assert entries == token_ids


def test_an_unfinished_character_is_not_lost(engine: HFEngine, say: Any) -> None:
    token_ids = tokens_of(engine, "a😀")[:-1]
    run = said(say([*token_ids, EOS]))
    assert run.text() == engine.detokenize(token_ids)
    assert run.text().endswith("\ufffd")


def test_joined_text_is_the_decoded_completion(engine: HFEngine) -> None:
    run = Run(engine, request(PROMPTS[1], n=4, temperature=2.0, seed=1, max_tokens=60)).finish()
    for index in range(4):
        token_ids = [token for token in run.token_ids(index=index) if token != EOS]
        assert run.text(index=index) == engine.detokenize(token_ids)


def test_min_tokens_holds_off_eos_and_stop_tokens(say: Any) -> None:
    engine = say([EOS])
    run = said(engine, min_tokens=4)
    assert len(run.token_ids()) == 5
    assert run.token_ids().index(EOS) == 4
    engine = say([TOOL_CALL])
    run = said(engine, min_tokens=2, stop_token_ids=(TOOL_CALL,))
    assert run.token_ids().index(TOOL_CALL) == 2


def test_min_tokens_holds_off_stop_strings(engine: HFEngine, say: Any) -> None:
    token_ids = tokens_of(engine, "=") * 6
    run = said(say(token_ids), stop=("=",), min_tokens=3)
    assert run.text() == "=="
    assert len(run.token_ids()) == 3
    assert run.last().stop_reason == "="


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (7, 7), (None, 253), (10_000, 253)])
def test_max_tokens_is_clamped_to_the_context(engine: HFEngine, asked: Any, given: int) -> None:
    run = Run(engine, request(PROMPTS[0], max_tokens=asked)).finish()
    assert len(run.token_ids()) == given
    assert run.last().finish_reason == "length"
    assert [d.finish_reason for d in run.deltas["r", 0][:-1]] == [None] * (given - 1)


def test_the_longest_prompt_has_room_for_one_token(engine: HFEngine) -> None:
    run = Run(engine, request([9] * 255, max_tokens=None)).finish()
    assert len(run.token_ids()) == 1


# Aborts and failures.


def test_abort_while_waiting(tiny_llama: Path) -> None:
    engine = load(tiny_llama, max_batch_size=1)
    run = Run(engine, request(PROMPTS[0], id="a"), request(PROMPTS[1], id="b")).steps(2)
    run.abort("b")
    run.finish()
    assert run.deltas["b", 0] == []
    assert_empty(engine)


def test_abort_in_mid_decode_frees_the_rows_at_once(
    engine: HFEngine, model: PreTrainedModel
) -> None:
    run = Run(engine, request(PROMPTS[1], id="long", n=2, max_tokens=99)).steps(4)
    run.add(request(PROMPTS[0], id="short"))
    run.steps(4)
    run.abort("long")
    assert len(engine._rows) == len(engine._batch.lengths) == 1
    assert engine._batch.cache.layers[0].keys.shape[-2] == engine._batch.width
    run.finish()
    assert run.token_ids("short") == greedy_reference(model, PROMPTS[0], 12)


def test_abort_of_the_last_request_leaves_nothing(engine: HFEngine) -> None:
    run = Run(engine, request(PROMPTS[0])).steps(2)
    run.abort("r")
    engine.abort_request("never-heard-of")
    assert_empty(engine)
    assert engine.step() == []


def test_a_poison_prompt_fails_alone(
    engine: HFEngine, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(engine, request(PROMPTS[0], id="good")).steps(3)
    prefill = ModelRunner.prefill

    def fail(runner: ModelRunner, token_ids: Any) -> Any:
        prefill(runner, token_ids)
        raise torch.OutOfMemoryError("no memory left")

    with monkeypatch.context() as patch:
        patch.setattr(ModelRunner, "prefill", fail)
        run.add(request(PROMPTS[1], id="poison", n=2))
        run.steps(1)
    assert "no memory left" in run.errors["poison"].message
    assert not isinstance(run.errors["poison"], InvalidRequestError)
    run.finish()
    assert run.token_ids("good") == greedy_reference(model, PROMPTS[0], 12)


def test_closing_frees_the_model(tiny_llama: Path) -> None:
    import weakref

    engine = load(tiny_llama)
    weights = weakref.ref(engine._runner._model.get_input_embeddings().weight)
    engine.add_request(request(PROMPTS[0]))
    engine.step()
    engine.close()
    assert weights() is None


# What is refused.


@pytest.mark.parametrize(
    ("bad", "param", "kind"),
    [
        (request([]), "prompt", InvalidRequestError),
        (request([VOCAB_SIZE]), "prompt", InvalidRequestError),
        (request([5, -1]), "prompt", InvalidRequestError),
        (request([5] * 256), "prompt", ContextLengthExceededError),
        (request([5], n=17), "n", InvalidRequestError),
        (request([5], n=0), "n", InvalidRequestError),
        (request([5], max_tokens=0), "max_tokens", InvalidRequestError),
        (request([5], logit_bias={VOCAB_SIZE: 1.0}), "logit_bias", InvalidRequestError),
        (request([5], logit_bias={-1: 1.0}), "logit_bias", InvalidRequestError),
        (request([5], stop_token_ids=(9999,)), "stop_token_ids", InvalidRequestError),
        (request([5], repetition_penalty=0.0), "repetition_penalty", InvalidRequestError),
    ],
)
def test_refused_requests(
    engine: HFEngine, bad: GenerationRequest, param: str, kind: type[ServingError]
) -> None:
    with pytest.raises(kind) as caught:
        engine.add_request(bad)
    assert type(caught.value) is kind
    assert caught.value.param == param
    assert_empty(engine)


def test_too_long_a_prompt_names_both_lengths(engine: HFEngine) -> None:
    with pytest.raises(ContextLengthExceededError) as caught:
        engine.add_request(request([5] * 300))
    assert caught.value.message.startswith(
        "This model's maximum context length is 256 tokens. However, your prompt has 300 tokens"
    )


def test_queue_full(tiny_llama: Path) -> None:
    engine = load(tiny_llama, max_batch_size=2, max_waiting=1)
    run = Run(engine, *(request(PROMPTS[0], id=id) for id in "abc"))  # two run, one waits
    with pytest.raises(QueueFullError):
        engine.add_request(request(PROMPTS[0], id="d"))
    run.finish()
    run.add(request(PROMPTS[0], id="d"))
    run.finish()
    assert run.token_ids("d") == run.token_ids("a")


def test_half_a_surrogate_pair_is_refused(engine: HFEngine) -> None:
    with pytest.raises(InvalidRequestError, match="Unicode"):
        engine.tokenize("\ud800", add_special_tokens=True)


def test_one_row_for_a_model_whose_rows_disturb_each_other(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("backends.hf.cache._stack", lambda upper, lower: 1 / 0)
    engine = load(tiny_llama)
    assert engine._limits.max_rows == 1
    assert "one request at a time" in caplog.text
    run = Run(engine, request(PROMPTS[0], id="a"), request(PROMPTS[1], id="b")).finish()
    assert len(run.token_ids("b")) == 12
    with pytest.raises(InvalidRequestError):
        engine.add_request(request(PROMPTS[0], n=2))


def test_sampling_params_cover_the_contract() -> None:
    """A new field in the contract must be honoured here or named in `unsupported`."""
    known = {
        "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty",
        "frequency_penalty", "repetition_penalty", "logit_bias", "seed", "stop", "stop_token_ids",
        "ignore_eos", "logprobs",
    }  # fmt: skip
    assert set(SamplingParams.__dataclass_fields__) == known
    assert Delta.__dataclass_fields__.keys() >= {"prefill_tokens"}
