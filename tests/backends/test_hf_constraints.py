"""Answers held to grammars: random models at a high temperature say nothing else."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from enginebay import (
    Case,
    Free,
    GenerationRequest,
    Grammar,
    InvalidRequestError,
    Pattern,
    ReasoningBudget,
    Text,
    UpTo,
    choice,
    json_value,
    sequence,
)
from enginebay.contract.grammar import Lark
from enginebay_hf.engine import HFEngine
from tests.backends.tiny import EOS, TOOL_CALL, VOCAB_SIZE, Run, load, make_model, request
from tests.drafting import drafts_pay

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["quick brown fox", "lazy dog", 7, None]},
        "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
        "done": {"type": "boolean"},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}
NAMED = sequence('{"the quick brown fox": ', choice("true", "false"), ', "lazy dog": ', "1 + 2}")
PROMPT = [5, 60, 7]


@pytest.fixture(scope="module", params=["packed", "padded"])
def engine(request: pytest.FixtureRequest, tiny_llama: Path) -> Iterator[HFEngine]:
    made = load(tiny_llama, batching=request.param, max_batch_size=8)
    yield made
    assert not made._requests
    made.close()


@pytest.fixture(scope="module")
def packed(tiny_llama: Path) -> HFEngine:
    return load(tiny_llama, batching="packed", max_batch_size=8)


def constrained(grammar: Grammar, id: str = "r", **fields: Any) -> GenerationRequest:
    params: dict[str, Any] = {"temperature": 1.5, "max_tokens": 220, "ignore_eos": False, **fields}
    return request(PROMPT, id=id, constraint=grammar, **params)


def test_every_answer_is_valid_against_its_schema(engine: HFEngine) -> None:
    # on every way of batching, greedy among them
    jobs = [constrained(json_value(SCHEMA), str(seed), seed=seed) for seed in range(50)]
    jobs.append(constrained(json_value(SCHEMA), "greedy", temperature=0.0))
    run = Run(engine, *jobs).finish()
    ended = [job.request_id for job in jobs if run.last(job.request_id).finish_reason == "stop"]
    assert len(ended) > 40
    for request_id in ended:
        jsonschema.validate(json.loads(run.text(request_id)), SCHEMA)
    for job in jobs:
        if job.request_id not in ended:  # white space for ever, or an integer that does not end
            assert run.last(job.request_id).finish_reason == "length"
            assert len(run.token_ids(job.request_id)) == 220


def test_who_is_free_does_not_notice(engine: HFEngine) -> None:
    free = [request(PROMPT, id=f"f{i}", temperature=1.2, seed=i, max_tokens=20) for i in range(3)]
    alone = [Run(engine, item).finish().token_ids(item.request_id) for item in free]
    held = [constrained(json_value(SCHEMA), f"c{i}", seed=i) for i in range(3)]
    alone_held = [Run(engine, item).finish().token_ids(item.request_id) for item in held]
    run = Run(engine, *(item for pair in zip(free, held, strict=True) for item in pair)).finish()
    assert [run.token_ids(item.request_id) for item in free] == alone
    assert [run.token_ids(item.request_id) for item in held] == alone_held


def test_what_must_come_costs_no_step(packed: HFEngine) -> None:
    run = Run(packed, constrained(NAMED))
    steps = 0
    while not run.is_finished():
        run.steps(1)
        steps += 1
    answer = run.text().replace("true", "false")
    assert answer == '{"the quick brown fox": false, "lazy dog": 1 + 2}'
    assert run.last().finish_reason == "stop"
    assert len(run.token_ids()) > 12 > steps


def test_forced_tokens_are_the_same_with_and_without_steps(
    packed: HFEngine, tiny_llama: Path
) -> None:
    # Requests with logprobs, and models whose prompts come whole, have a step for each.
    jobs = [constrained(NAMED, seed=seed) for seed in range(6)]
    padded = load(tiny_llama, batching="padded")
    guessing = load(tiny_llama, batching="packed", prompt_lookup=4)
    drafts_pay(guessing)
    for seed, job in enumerate(jobs):
        expected = Run(packed, job).finish().token_ids()
        asked = constrained(NAMED, seed=seed, logprobs=2)
        run = Run(packed, asked).finish()
        assert run.token_ids() == expected
        entries = [entry for delta in run.deltas["r", 0] for entry in delta.logprobs or ()]
        assert [entry.token_id for entry in entries] == expected
        assert all(entry.logprob < 0 and len(entry.top) == 2 for entry in entries)
        assert Run(padded, job).finish().token_ids() == expected
        assert Run(guessing, job).finish().token_ids() == expected


def test_choices_go_their_own_ways(engine: HFEngine) -> None:
    grammar = sequence('{"kind": ', Pattern('"[a-z]{3,12}"'), "}")
    item = request(
        PROMPT, n=3, constraint=grammar, temperature=1.5, seed=3, max_tokens=60, ignore_eos=False
    )
    run = Run(engine, item).finish()
    texts = [run.text("r", index) for index in range(3)]
    assert len(set(texts)) == 3
    assert all(3 <= len(json.loads(text)["kind"]) <= 12 for text in texts)
    again = Run(engine, item).finish()
    assert [again.text("r", index) for index in range(3)] == texts


def test_choices_that_give_way_keep_to_their_grammars(tiny_llama: Path) -> None:
    roomy = load(tiny_llama)
    tight = load(tiny_llama, context_length=100, cache_tokens=120, max_batch_size=4)
    jobs = [
        constrained(sequence(NAMED, json_value(SCHEMA)), str(i), seed=i, max_tokens=80)
        for i in range(4)
    ]
    expected = Run(roomy, *jobs).finish()
    run = Run(tight, *jobs).finish()
    for job in jobs:
        assert run.token_ids(job.request_id) == expected.token_ids(job.request_id)
        assert run.last(job.request_id).finish_reason


def test_what_is_left_out_by_a_stop_string_is_not_said_to_be_there(engine: HFEngine) -> None:
    grammar = sequence("the quick ", choice("brown ", "lazy "), "dog", Pattern("(!|\\?)*"))

    def stopped(*stop: str, **fields: Any) -> tuple[str, str | None, str | int | None]:
        run = Run(engine, constrained(grammar, stop=stop, max_tokens=40, **fields)).finish()
        return run.text(), run.last().finish_reason, run.last().stop_reason

    text, finish_reason, stop_reason = stopped("dog")
    assert text in ("the quick brown ", "the quick lazy ")
    assert (finish_reason, stop_reason) == ("length", "dog")
    text, finish_reason, _ = stopped("dog", include_stop_str_in_output=True)
    assert text.endswith("dog")
    assert finish_reason == "stop"
    assert stopped("ick")[1] == "length"
    always = Run(engine, constrained(Free(), stop=("e",), max_tokens=200, seed=1)).finish()
    assert (always.last().finish_reason, always.last().stop_reason) == ("stop", "e")


def test_a_completion_cut_short_says_so(engine: HFEngine) -> None:
    run = Run(engine, constrained(NAMED, max_tokens=5)).finish()
    assert len(run.token_ids()) == 5
    assert run.last().finish_reason == "length"


def test_a_stop_token_ends_only_what_may_end(engine: HFEngine) -> None:
    fox = next(iter(engine.tokenize(" fox", add_special_tokens=False)))
    grammar = sequence("the quick brown fox", choice("", " fox"))
    run = Run(engine, constrained(grammar, stop_token_ids=(fox,))).finish()
    assert run.text().startswith("the quick brown")
    assert run.last().finish_reason in ("stop", "length")
    inside = engine.detokenize(run.token_ids())
    assert (run.last().finish_reason == "stop") == (inside.startswith("the quick brown fox"))


def test_thought_is_free_and_ended_by_its_budget(engine: HFEngine) -> None:
    closing = tuple(engine.tokenize("</t>", add_special_tokens=False))
    budget = ReasoningBudget(
        tokens=4, start="<t>", end="</t>", close_token_ids=closing, starts_inside=True
    )
    grammar = sequence(UpTo("</t>"), json_value(SCHEMA))
    item = constrained(grammar, reasoning_budget=budget, max_tokens=220, ignore_eos=False, seed=2)
    run = Run(engine, item).finish()
    thought, answer = run.text().split("</t>", 1)
    assert len(engine.tokenize(thought, add_special_tokens=False)) <= 5
    if run.last().finish_reason == "stop":
        jsonschema.validate(json.loads(answer), SCHEMA)


def test_a_call_that_is_opened_is_made(engine: HFEngine) -> None:
    # TAB-58
    call = sequence('{"name": "f", "arguments": ', json_value({"enum": [{}, {"a": 1}]}), "}!")
    grammar = Free((Case(Text("<tool_call>"), call),), once=True)
    bias = {TOOL_CALL: 4.0}
    jobs = [
        constrained(
            grammar,
            str(seed),
            seed=seed,
            logit_bias=bias,
            max_tokens=150,
            skip_special_tokens=False,
        )
        for seed in range(20)
    ]
    run = Run(engine, *jobs).finish()
    calls = [run.text(job.request_id).partition("<tool_call>")[2] for job in jobs]
    made = [
        text
        for job, text in zip(jobs, calls, strict=True)
        if text and run.last(job.request_id).finish_reason == "stop"
    ]
    assert made
    for text in made:
        assert json.loads(text.removesuffix("!"))["name"] == "f"


BANS: list[dict[str, Any]] = [
    {"logit_bias": dict.fromkeys(range(VOCAB_SIZE), -math.inf)},
    {"allowed_token_ids": (EOS,)},
    {"min_tokens": 100},
    {"ignore_eos": True},
    {"top_k": 1},
    {"temperature": 0.0, "logit_bias": dict.fromkeys(range(VOCAB_SIZE), -math.inf)},
]


@pytest.mark.parametrize("bans", BANS, ids=lambda bans: "-".join(bans))
def test_a_constraint_goes_before_all_that_bans(engine: HFEngine, bans: dict[str, Any]) -> None:
    run = Run(engine, constrained(NAMED, seed=1, **bans)).finish()
    assert list(json.loads(run.text().replace("1 + 2", "3"))) == ["the quick brown fox", "lazy dog"]
    assert run.last().finish_reason == "stop"


def test_a_grammar_that_becomes_too_complex_fails_alone(engine: HFEngine) -> None:
    # https://github.com/guidance-ai/llguidance: at most 2,000 items in a row of the Earley parser
    source = 'start: x{1,2000}\nx: a | b | c\na: "a"+\nb: "a"* "b"?\nc: "a"* "c"?'
    other = request(PROMPT, id="other", temperature=1.0, seed=5, max_tokens=30)
    expected = Run(engine, other).finish().token_ids("other")
    run = Run(engine, constrained(Lark(source), min_tokens=200), other).finish()
    assert isinstance(run.errors["r"], InvalidRequestError)
    assert "grammar" in run.errors["r"].message
    assert run.token_ids("other") == expected


def test_time_is_accounted_for(engine: HFEngine) -> None:
    # WEB-31, WEB-32
    assert engine.info.constraints
    assert engine.compile(json_value(SCHEMA)) >= 0
    run = Run(engine, constrained(json_value(SCHEMA), seed=1), request(PROMPT, id="free")).finish()
    assert sum(delta.grammar_s for delta in run.deltas["r", 0]) > 0
    assert not any(delta.grammar_s for delta in run.deltas["free", 0])


def test_what_cannot_be_compiled_is_refused(engine: HFEngine) -> None:
    with pytest.raises(InvalidRequestError):
        engine.compile(Lark("start: undefined"))
    with pytest.raises(InvalidRequestError):
        engine.add_request(constrained(Lark("start: undefined")))
    assert not engine._requests


@pytest.mark.parametrize("family", ["qwen3_next", "gpt2"])
def test_other_ways_to_run_a_model(family: str, tmp_path: Path) -> None:
    engine = load(make_model(tmp_path, family))
    jobs = [constrained(json_value(SCHEMA), str(seed), seed=seed) for seed in range(4)]
    run = Run(engine, *jobs).finish()
    for job in jobs:
        if run.last(job.request_id).finish_reason == "stop":
            jsonschema.validate(json.loads(run.text(job.request_id)), SCHEMA)
    engine.close()
