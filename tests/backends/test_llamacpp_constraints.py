"""Constraints on the llamacpp engine: completions of the demo model keep to them."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from demo.to_gguf import convert
from enginebay import (
    Case,
    Free,
    GenerationRequest,
    Pattern,
    Repeat,
    Text,
    UnsupportedParameterError,
    choice,
    json_value,
    sequence,
)
from enginebay_llamacpp.engine import LlamaCppEngine
from tests.backends.gguf_models import write_llama, write_recurrent
from tests.backends.llamacpp import load, request
from tests.drafting import drafts_pay
from tests.run import Run
from tests.support import DEMO_MODEL

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["unit", "city", "days"],
    "additionalProperties": False,
}
HOT: dict[str, Any] = {"temperature": 1.5, "max_tokens": 400, "ignore_eos": False}
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 400, "ignore_eos": False}
QUESTION = "<|im_start|>user\nWhat is the weather?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCppEngine]:
    target = tmp_path_factory.mktemp("gguf") / "demo.gguf"
    convert(DEMO_MODEL, target, "f16")
    engine = load(target, context_length=1024, max_batch_size=16, kv_unified=True)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def prompt(engine: LlamaCppEngine) -> list[int]:
    return engine.tokenize(QUESTION, add_special_tokens=False)


def asked(prompt: list[int], number: int, **sampling: Any) -> GenerationRequest:
    return request(prompt, id=str(number), seed=number, **sampling)


def check_schema(run: Run, id: str, index: int = 0) -> None:
    assert run.last(id, index).finish_reason == "stop"
    validate(json.loads(run.text(id, index)), SCHEMA)


def test_the_engine_says_that_it_can(engine: LlamaCppEngine) -> None:
    assert engine.info.constraints
    assert engine.compile(json_value({"type": "null"})) > 0


def test_answers_are_valid_against_their_schema(engine: LlamaCppEngine, prompt: list[int]) -> None:
    constraint = json_value(SCHEMA)
    run = Run(engine, *[asked(prompt, i, constraint=constraint, **HOT) for i in range(50)])
    run.finish()
    for i in range(50):
        check_schema(run, str(i))
    assert len({run.text(str(i)) for i in range(50)}) > 30


def test_a_greedy_answer(engine: LlamaCppEngine, prompt: list[int]) -> None:
    check_schema(
        Run(engine, asked(prompt, 0, constraint=json_value(SCHEMA), **GREEDY)).finish(), "0"
    )


def test_an_answer_matches_its_pattern(engine: LlamaCppEngine, prompt: list[int]) -> None:
    constraint = Pattern("[A-Z][a-zé]{2,9}( [0-9]{1,3}){1,4}")
    run = Run(engine, *[asked(prompt, i, constraint=constraint, **HOT) for i in range(20)]).finish()
    for i in range(20):
        assert re.fullmatch(constraint.pattern, run.text(str(i)))
        assert run.last(str(i)).finish_reason == "stop"


NATIVE: list[dict[str, Any]] = [
    {"mirostat": 1},
    {"mirostat": 2},
    {"typical_p": 0.5},
    {"dry_multiplier": 5.0, "dry_allowed_length": 1},
    {"xtc_probability": 1.0, "xtc_threshold": 0.0},
    {"top_n_sigma": 0.5},
    {"adaptive_target": 0.1},
    {"dynatemp_range": 1.0},
    {"top_k": 3, "top_p": 0.5, "min_p": 0.2, "repetition_penalty": 5.0},
]


def test_every_sampler_keeps_to_it(engine: LlamaCppEngine, prompt: list[int]) -> None:
    wanted = [{**HOT, **params} for params in NATIVE for _ in range(3)]
    run = Run(engine)
    for number, params in enumerate(wanted):
        run.add(asked(prompt, number, constraint=json_value(SCHEMA), **params))
    run.finish()
    for number in range(len(wanted)):
        check_schema(run, str(number))


def test_choices_of_one_request(engine: LlamaCppEngine, prompt: list[int]) -> None:
    run = Run(engine, request(prompt, n=3, seed=1, constraint=json_value(SCHEMA), **HOT)).finish()
    for index in range(3):
        check_schema(run, "r", index)
    assert len({run.text("r", index) for index in range(3)}) == 3


def test_those_without_constraint_say_what_they_say_alone(
    engine: LlamaCppEngine, prompt: list[int]
) -> None:
    free = [asked(prompt, i, **{**HOT, "max_tokens": 30}, top_k=20) for i in range(4)]
    alone = [Run(engine, item).finish().token_ids(item.request_id) for item in free]
    run = Run(engine, *free)
    for i in range(4, 10):
        run.add(asked(prompt, i, constraint=json_value(SCHEMA), **(HOT if i % 2 else GREEDY)))
    run.finish()
    for i in range(4, 10):
        check_schema(run, str(i))
    assert [run.token_ids(item.request_id) for item in free] == alone


def test_it_goes_before_bans(engine: LlamaCppEngine, prompt: list[int]) -> None:
    """`logit_bias`, `allowed_token_ids`, `min_tokens` and `ignore_eos` cannot break an answer."""
    banned = dict.fromkeys(range(3, engine.info.vocab_size), -math.inf)
    bans: list[dict[str, Any]] = [
        {"logit_bias": banned},
        {"allowed_token_ids": (5, 6)},
        {"min_tokens": 390},
        {"ignore_eos": True},
    ]
    run = Run(engine)
    for number, ban in enumerate(bans):
        run.add(asked(prompt, number, constraint=json_value(SCHEMA), **{**HOT, **ban}))
    run.finish()
    for number in range(len(bans)):
        check_schema(run, str(number))


def test_logprobs_are_the_models_own(engine: LlamaCppEngine, prompt: list[int]) -> None:
    free = Run(engine, asked(prompt, 0, logprobs=2, **{**GREEDY, "max_tokens": 1})).finish()
    first = (free.last("0").logprobs or ())[0]
    run = Run(engine, asked(prompt, 0, constraint=json_value(SCHEMA), logprobs=2, **HOT)).finish()
    entries = [entry for delta in run.deltas["0", 0] for entry in delta.logprobs or ()]
    assert [entry.token_id for entry in entries] == run.token_ids("0")
    assert [top.token_id for top in entries[0].top] == [top.token_id for top in first.top]
    assert entries[0].logprob <= first.logprob


def test_strings_have_no_special_tokens(engine: LlamaCppEngine, prompt: list[int]) -> None:
    """Not even of a model that says nothing else."""
    special = engine._special_token_ids
    wants = dict.fromkeys(special, 100.0)
    constraint = json_value({"type": "string", "minLength": 20, "maxLength": 60})
    run = Run(engine, asked(prompt, 0, constraint=constraint, logit_bias=wants, **HOT)).finish()
    assert 20 <= len(json.loads(run.text("0"))) <= 60
    assert not special & {*run.token_ids("0")} - engine._eos_token_ids
    assert special & {
        *Run(engine, asked(prompt, 0, logit_bias=wants, **HOT)).finish().token_ids("0")
    }


def test_what_follows_an_opening(engine: LlamaCppEngine, prompt: list[int]) -> None:
    """TAB-58: text as the model likes it, and where a case opens, its rest."""
    call = sequence(' {"name": "f", "arguments": ', json_value(SCHEMA), "}</call>")
    params = {**HOT, "constraint": Free((Case(Text(","), call),), once=True)}
    run = Run(engine, *[asked(prompt, i, **params) for i in range(20)]).finish()
    ended = [str(i) for i in range(20) if run.last(str(i)).finish_reason == "stop"]
    texts = [run.text(i) for i in ended]
    assert len({text.partition(",")[0] for text in texts}) > 2
    calls = [rest for text in texts if (rest := text.partition(",")[2])]
    assert len(calls) > 10
    for text in calls:
        found = re.fullmatch(r' {"name": "f", "arguments": (.*)}</call>', text, re.DOTALL)
        assert found
        validate(json.loads(found[1]), SCHEMA)


def test_guesses_do_not_lead_astray(tmp_path: Path) -> None:
    convert(DEMO_MODEL, tmp_path / "demo.gguf", "f16")
    engine = load(tmp_path / "demo.gguf", context_length=512, prompt_lookup=4)
    drafts_pay(engine)
    text = 'Say {"unit": "celsius", "city": "Kiel", "days": 3} or {"unit": "kelvin", "city": "'
    prompt = engine.tokenize(text, add_special_tokens=False)
    for seed in range(5):
        item = asked(prompt, seed, constraint=json_value(SCHEMA), **HOT)
        check_schema(Run(engine, item).finish(), str(seed))
    engine.close()


LAYOUTS: dict[str, dict[str, Any]] = {
    "separate": {"kv_unified": False},
    "small batches": {"kv_unified": True, "batch_tokens": 8},
    "a cache that is too small": {"kv_unified": True, "cache_tokens": 256, "context_length": 256},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tokens_that_must_come_run_in_every_layout(tmp_path: Path, layout: str) -> None:
    engine = load(write_llama(tmp_path / "model.gguf"), max_batch_size=4, **LAYOUTS[layout])
    check_long_texts(engine)
    engine.close()


def test_tokens_that_must_come_run_in_a_recurrent_model(tmp_path: Path) -> None:
    engine = load(write_recurrent(tmp_path / "model.gguf"), max_batch_size=4)
    check_long_texts(engine)
    engine.close()


def check_long_texts(engine: LlamaCppEngine) -> None:
    """A choice between texts, of which nearly all is forced; the same with logprobs, which are
    made token by token."""
    texts = [f"the {word} of all these is the one that is meant" for word in ("first", "other")]
    constraint = Repeat(choice(*texts), 2, 2)
    params = {**HOT, "temperature": 50.0, "constraint": constraint}
    run = Run(engine, *[asked([5, 6], i, **params) for i in range(8)]).finish()
    told = Run(engine, *[asked([5, 6], i, **params, logprobs=0) for i in range(8)]).finish()
    for i in range(8):
        assert run.text(str(i)) in [first + second for first in texts for second in texts]
        assert run.last(str(i)).finish_reason == "stop"
        assert told.token_ids(str(i)) == run.token_ids(str(i))
    assert len({run.text(str(i)) for i in range(8)}) > 1
    assert len(run.deltas["0", 0]) == len(run.token_ids("0"))


@pytest.mark.parametrize("words", ["bytes", "sentencepiece"])
def test_untrained_models_of_other_vocabularies(tmp_path: Path, words: str) -> None:
    engine = load(write_llama(tmp_path / "model.gguf", words=words), max_batch_size=8)
    things = ["the theth", "é the", "a▁b"]
    named = {"the thing": {"enum": things}, "x": {"type": "string", "maxLength": 9}}
    schema = {"type": "object", "properties": named, "required": [*named]}
    constraint = json_value({**schema, "additionalProperties": False})
    run = Run(engine, *[asked([5, 6], i, constraint=constraint, **HOT) for i in range(20)]).finish()
    for i in range(20):
        if run.last(str(i)).finish_reason == "stop":  # white space may go on for long
            validate(json.loads(run.text(str(i))), schema)
    assert sum(run.last(str(i)).finish_reason == "stop" for i in range(20)) > 10
    assert all(any(thing in run.text(str(i)) for i in range(20)) for thing in things)
    engine.close()


def test_a_vocabulary_that_cannot_be_handled_is_said_at_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = load(write_llama(tmp_path / "model.gguf", words="wordpiece"))
    assert not engine.info.constraints
    assert "tiny: structured output is not available" in caplog.text
    assert "alters texts" in caplog.text
    with pytest.raises(UnsupportedParameterError):
        engine.compile(json_value({}))
    assert Run(engine, request([5, 6])).finish().token_ids()
    engine.close()
