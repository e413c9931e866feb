"""The engine over ExLlamaV2 with a model that is exact: any traffic, small pages, any failure."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import active_count
from typing import Any

import pytest

from enginebay import (
    GenerationRequest,
    InvalidRequestError,
    Pattern,
    ReasoningBudget,
    SamplingParams,
)
from tests.backends.exllamav2_exact import SMALL_PAGE, ExactModel, small_pages
from tests.backends.exllamav2_loading import LoadExLlamaV2
from tests.backends.exllamav2_loading import load_exllamav2 as load_exllamav2
from tests.backends.exllamav2_models import make_model
from tests.backends.test_exllamav2_engine import assert_empty
from tests.effort import some
from tests.run import Run, request

CONTEXT = 250
PREFIXES: list[list[int]] = [[], list(range(10, 90)), [7, 8, 9] * 12, list(range(100, 260))]
SAMPLING: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 2.0, "min_p": 0.05, "repetition_penalty": 1.3},
    {"ignore_eos": False, "stop": ("a", "th")},
    {"constraint": Pattern("[0-9]{4}-[0-9]{2}")},
    {"token_healing": True, "temperature": 1.0},
    {"logit_bias": {70: 50.0}},
    {
        "reasoning_budget": ReasoningBudget(
            tokens=3, start="<t>", end="</t>", close_token_ids=(31, 32, 33), starts_inside=True
        )
    },
)
SHORT = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
BANNED = ("a", "th", "o", "er")
ENGINES: dict[str, dict[str, Any]] = {
    "paged": {},
    "little memory": {"cache_tokens": 256},
    "guessing by the text": {"prompt_lookup": 3, "cache_tokens": 256},
    "guessing by a model": {"draft_model": ".", "draft_tokens": 3, "cache_tokens": 256},
    "one at a time": {"paged": False},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    make_model(path)
    return path


@pytest.fixture(scope="module")
def pages(load_exllamav2: LoadExLlamaV2) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        small_pages(patch)
        yield


@pytest.fixture(scope="module")
def load(load_exllamav2: LoadExLlamaV2, folder: Path, pages: None) -> Any:
    def load_exact(**options: Any) -> Any:
        if options.get("draft_model"):
            options["draft_model"] = str(folder)
        sizes = {"context_length": CONTEXT, "cache_tokens": 1024, "prefill_tokens": 256}
        engine = load_exllamav2(folder, **{**sizes, "max_batch_size": 5, **options})
        ExactModel(engine)
        return engine

    return load_exact


@pytest.fixture(scope="module")
def alone(load: Any) -> Any:
    """The engine that answers one request at a time, for reference."""
    return load()


def random_request(random: Random, number: int, known: list[list[int]]) -> GenerationRequest:
    """`known` are prompts with their answers, which conversations go on with."""
    prompt = random.choice(PREFIXES) + [random.randrange(4, 300) for _ in range(9)]
    if known and random.random() < 0.5:
        prompt = random.choice(known)
        prompt = prompt[: random.randint(1, len(prompt))]
    prompt = prompt[: CONTEXT - 45]
    sampling = {"seed": number, "max_tokens": random.randint(1, 45), **random.choice(SAMPLING)}
    if "constraint" not in sampling and random.random() < 0.2:
        sampling["banned_strings"] = BANNED
    return replace(
        request(prompt, id=str(number), n=random.choice((1, 1, 2, 6)), **sampling),
        priority=random.choice((0, 0, -1, 2)),
        cache_salt=random.choice((None, None, "a")),
    )


def assert_whole(engine: Any) -> None:
    """The page table is that of the jobs that run."""
    generator = engine._scheduler.generator
    assert set(generator.active_jobs) | set(generator.pending_jobs) == set(
        engine._scheduler.running.values()
    )
    if generator.paged:
        # The library has this check, but switched off.
        generator._ExLlamaV2DynamicGenerator___validate_cache()


def assert_as_alone(alone: Any, run: Run, item: GenerationRequest, unsupported: Any) -> None:
    sampling = item.sampling
    if "banned_strings" in unsupported:
        sampling = replace(sampling, banned_strings=())
    reference = Run(alone, replace(item, sampling=sampling, cache_salt=str(id(run)))).finish()
    for index in range(item.n):
        text = run.text(item.request_id, index)
        # Which characters are whole depends on what was said since the choice last gave way.
        if sampling.banned_strings and "\ufffd" in text + reference.text(item.request_id, index):
            continue
        assert text == reference.text(item.request_id, index)
        assert run.token_ids(item.request_id, index) == reference.token_ids(item.request_id, index)
        expected = reference.last(item.request_id, index)
        assert run.last(item.request_id, index).finish_reason == expected.finish_reason


@pytest.mark.parametrize("kind", some(ENGINES, ("little memory", "guessing by a model")))
def test_traffic_never_changes_an_answer(load: Any, alone: Any, kind: str) -> None:
    engine = load(**ENGINES[kind])
    random = Random(kind)
    known: list[list[int]] = []
    for _ in range(4):
        run, items = Run(engine), {}
        for number in range(6):
            item = items[str(number)] = random_request(random, number, known)
            run.add(item)
            for _ in range(random.randrange(8)):
                run.steps(1)
                assert_whole(engine)
            if random.random() < 0.2:
                gone = random.choice(list(items))
                run.abort(gone)
                del items[gone]
        run.finish()
        assert not run.errors
        assert_whole(engine)
        assert_empty(engine)
        for item in items.values():
            assert_as_alone(alone, run, item, engine.info.unsupported)
            known.append([*item.prompt_token_ids, *run.token_ids(item.request_id)])
    engine.close()


def test_a_page_of_others_loses_no_token_that_is_taken_back(load: Any, alone: Any) -> None:
    """The token behind a full page begins a banned string; another request has that page, too."""
    engine = load()
    texts = {i: alone.detokenize([i]) for i in range(4, alone._usable)}
    allowed = tuple(i for i, text in texts.items() if text.isascii() and text.isprintable())
    for start in range(20, 60, 3):
        prompt = list(range(start, start + 9))
        free = request(prompt, id="free", max_tokens=40, allowed_token_ids=allowed)
        first = texts[Run(alone, free).finish().token_ids("free")[SMALL_PAGE - len(prompt)]]
        sampling = replace(free.sampling, banned_strings=(first,))
        banned = replace(free, request_id="banned", sampling=sampling)
        run = Run(engine, free).steps(3)
        run.add(banned)
        while not run.is_finished("banned"):
            run.steps(1)
            assert_whole(engine)
        for item in (free, banned):
            assert_as_alone(alone, run, item, frozenset())
    assert engine._scheduler._max_running == 5  # nothing has failed


def test_tokens_that_the_tokenizer_does_not_know(load: Any) -> None:
    engine = load()
    known, unknown = engine._usable - 1, engine._usable
    assert unknown < engine.info.vocab_size
    sampling = {
        "logit_bias": {unknown: 100.0},
        "allowed_token_ids": (known, unknown),
        "stop_token_ids": (unknown,),
        "min_tokens": 2,
        "repetition_penalty": 1.2,
    }
    run = Run(engine, request([unknown, 8], max_tokens=3, **sampling)).finish()
    assert run.token_ids() == [known] * 3
    with pytest.raises(InvalidRequestError) as caught:
        run.add(request([8], allowed_token_ids=(unknown,)))
    assert caught.value.param == "allowed_token_ids"


def test_a_failed_generator_leaves_no_threads(load: Any) -> None:
    engine = load()
    items = [request([5, 6, i], id=str(i), constraint=Pattern("[a-z]{9}")) for i in range(4)]
    run = Run(engine, *items).steps(3)
    before = active_count()
    forward = engine._model.model.forward_chunk
    for _ in range(5):
        engine._model.model.forward_chunk = None
        run.steps(1)
        engine._model.model.forward_chunk = forward
        run.steps(8)
    assert not run.errors
    run.finish()
    assert active_count() <= before + 4


@pytest.mark.parametrize("paged", [True, False])
def test_an_answer_may_end_anywhere_in_a_draft(load: Any, alone: Any, paged: bool) -> None:
    """The draft model is the model, so all that it guesses is right; page ends are among them."""
    engine = load(draft_model=".", draft_tokens=5, paged=paged)
    prompt = list(range(30, 39))
    for tokens in range(1, 16):
        item = request(prompt, max_tokens=tokens)
        run = Run(engine, item, replace(item, request_id="other", sampling=SHORT)).finish()
        assert_whole(engine)
        assert_as_alone(alone, run, item, frozenset())
    assert_empty(engine)


def test_a_prompt_may_end_with_what_is_banned(load: Any) -> None:
    engine = load()
    prompt = engine.tokenize("the quick b", add_special_tokens=False)
    item = request(prompt, token_healing=True, banned_strings=("b", "r"), max_tokens=8)
    run = Run(engine, item).finish()
    assert not run.errors
    assert not set(run.text().lower()) & {"b", "r"}
