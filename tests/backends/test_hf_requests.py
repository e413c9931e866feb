"""Requests that are aborted, fail, wait or are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from enginebay import (
    ContextLengthExceededError,
    Delta,
    GenerationRequest,
    InvalidRequestError,
    ServingError,
)
from enginebay_hf.engine import HFEngine
from enginebay_hf.packed.runner import PackedRunner
from tests.backends.conftest import assert_empty
from tests.backends.tiny import PROMPTS, VOCAB_SIZE, Run, greedy_reference, load, request

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
    assert [choice.request.request_id for choice in engine._scheduler.running] == ["short"]
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
    forward = PackedRunner.run
    poison = [99, 98, 97]  # not remembered from another test

    def fail(runner: PackedRunner, chunks: Any) -> Any:
        logits = forward(runner, chunks)
        if any(chunk.token_ids[:3] == poison[:3] for chunk in chunks):
            raise torch.OutOfMemoryError("no memory left")
        return logits

    monkeypatch.setattr(PackedRunner, "run", fail)
    run.add(request(poison, id="poison", n=2))
    run.finish()
    assert "no memory left" in run.errors["poison"].message
    assert not isinstance(run.errors["poison"], InvalidRequestError)
    assert run.token_ids("good") == greedy_reference(model, PROMPTS[0], 12)


def test_closing_frees_the_model(tiny_llama: Path) -> None:
    import weakref

    engine = load(tiny_llama)
    weights = weakref.ref(engine._runner._model.model.get_input_embeddings().weight)
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


def test_half_a_surrogate_pair_is_refused(engine: HFEngine) -> None:
    with pytest.raises(InvalidRequestError, match="Unicode"):
        engine.tokenize("\ud800", add_special_tokens=True)


def test_one_row_for_a_model_whose_rows_disturb_each_other(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("enginebay_hf.native.cache._stack", lambda upper, lower: 1 / 0)
    engine = load(tiny_llama, batching="padded")
    assert engine._runner.memory.slots == 1
    assert "one request at a time" in caplog.text
    run = Run(engine, request(PROMPTS[0], id="a"), request(PROMPTS[1], id="b")).finish()
    assert len(run.token_ids("b")) == 12
    with pytest.raises(InvalidRequestError):
        engine.add_request(request(PROMPTS[0], n=2))


def test_sampling_params_cover_the_contract(engine: HFEngine) -> None:
    """A new field is unsupported until something says that it honours it."""
    assert engine.info.unsupported == {"token_healing"}
    assert Delta.__dataclass_fields__.keys() >= {"prefill_tokens"}
