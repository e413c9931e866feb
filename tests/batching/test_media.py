"""Prompts with media in the batch: cached by what they show, cut where they may be."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import GenerationRequest, Media, MediaSpan
from enginebay.engine.batching.drafts import PromptLookup
from enginebay.engine.batching.runner import RunnerMemory
from enginebay.engine.batching.spans import ends_before
from tests.batching.model import CONTEXT, HashEngine, expected, make_engine, picture, request
from tests.effort import examples
from tests.run import Run

IMAGE = 3
"""The placeholder."""

MEMORIES = {
    "cut": RunnerMemory(slots=8, tokens=8 * CONTEXT),
    "cut and tight": RunnerMemory(slots=4, tokens=CONTEXT),
    "apart": RunnerMemory(slots=4, tokens=2 * CONTEXT, media_apart=True),
    "whole": RunnerMemory(slots=4, tokens=2 * CONTEXT, media_spans="whole"),
    "whole and tight": RunnerMemory(slots=4, tokens=CONTEXT, media_spans="whole"),
    "whole and apart": RunnerMemory(
        slots=4, tokens=CONTEXT, shares=True, media_spans="whole", media_apart=True
    ),
    "prompt": RunnerMemory(slots=4, tokens=2 * CONTEXT, media_spans="prompt"),
    "no chunks": RunnerMemory(slots=4, tokens=2 * CONTEXT, cuts=False, chunks=False),
}


def prompt_of(*pieces: Sequence[int] | tuple[Media, Sequence[int]]) -> dict[str, object]:
    """Tokens and spans: texts, and items with the lengths of their spans, a 2 between these."""
    tokens: list[int] = []
    spans = []
    for piece in pieces:
        if isinstance(piece, tuple) and isinstance(piece[0], Media):
            media, lengths = piece
            first = 0
            for length in lengths:
                spans.append(MediaSpan(len(tokens), length, media, first))
                tokens += [*[IMAGE] * length, 2]
                first += length
        else:
            tokens += piece
    return {"prompt": tokens, "media": tuple(spans)}


@st.composite
def media_requests(draw: st.DrawFn) -> list[tuple[int, GenerationRequest]]:
    arrivals = []
    for number in range(draw(st.integers(1, 6))):
        pieces: list[object] = []
        for _ in range(draw(st.integers(0, 2))):
            pieces.append(draw(st.lists(st.integers(2, 9), max_size=4)))
            lengths = draw(st.sampled_from([[1], [5], [9], [3, 3]]))
            pieces.append((picture(draw(st.sampled_from("abc"))), lengths))
        pieces.append(draw(st.lists(st.integers(2, 9), min_size=1, max_size=6)))
        arrivals.append(
            (
                draw(st.integers(0, 5)),
                request(
                    **prompt_of(*pieces),
                    id=str(number),
                    n=draw(st.integers(1, 2)),
                    max_tokens=draw(st.integers(1, 8)),
                ),
            )
        )
    return arrivals


def check(run: Run, item: GenerationRequest) -> None:
    for index in range(item.n):
        assert run.token_ids(item.request_id, index) == expected(item, index)


@pytest.mark.parametrize("memory", MEMORIES)
@examples(60)
@given(arrivals=media_requests(), aborted=st.sets(st.integers(0, 5)), draft=st.booleans())
def test_traffic_never_changes_an_answer(
    memory: str, arrivals: list[tuple[int, GenerationRequest]], aborted: set[int], draft: bool
) -> None:
    # MM-10 MM-11 MEDIA-7 MEDIA-37
    drafter = PromptLookup(3) if draft and MEMORIES[memory].cuts else None
    engine = make_engine(MEMORIES[memory], drafter=drafter)
    run = Run(engine).traffic(arrivals, aborted)
    for number, (_, item) in enumerate(arrivals):
        if number not in aborted:
            check(run, item)


def cached(run: Run, item: GenerationRequest) -> int:
    run.add(item)
    run.finish()
    check(run, item)
    return run.deltas[item.request_id, 0][0].cached_tokens


TEXT = list(range(4, 14))
QUESTION = [20, 21]


def engine_of(memory: RunnerMemory) -> tuple[Run, HashEngine]:
    engine = make_engine(memory, batch_tokens=64)
    return Run(engine), engine


@pytest.mark.parametrize("memory", ["cut", "apart", "whole"])
def test_a_picture_is_cached_by_what_it_shows(memory: str) -> None:
    # MM-10 MEDIA-7
    run, engine = engine_of(MEMORIES[memory])
    first = prompt_of(TEXT, (picture("a"), [9]), QUESTION)
    assert cached(run, request(**first, id="first")) == 0
    assert cached(run, request(**first, id="again")) == len(TEXT) + 9 + 1 + len(QUESTION) - 1
    assert engine._runner.encodings == 1
    other = prompt_of(TEXT, (picture("b"), [9]), QUESTION)
    assert cached(run, request(**other, id="other")) == len(TEXT)
    later = prompt_of(TEXT, (picture("a"), [9]), QUESTION, (picture("b"), [9]), QUESTION)
    assert cached(run, request(**later, id="later")) == len(TEXT) + 9 + 1 + len(QUESTION)


def test_a_prompt_that_sees_itself_shares_nothing() -> None:
    run, _ = engine_of(MEMORIES["prompt"])
    item = prompt_of(TEXT, (picture("a"), [9]), QUESTION)
    assert cached(run, request(**item, id="first")) == 0
    assert cached(run, request(**item, id="again")) == 0
    assert cached(run, request(item["prompt"], id="text")) == 0


@pytest.mark.parametrize("memory", ["whole", "whole and apart", "apart"])
def test_the_cached_part_never_ends_within_an_item(memory: str) -> None:
    """Of a prompt that ends with an item, whose last token has to be run for its logits."""
    run, _ = engine_of(MEMORIES[memory])
    media = picture("a")
    item = {"prompt": [*TEXT, *[IMAGE] * 5], "media": (MediaSpan(len(TEXT), 5, media),)}
    assert cached(run, request(**item, id="first")) == 0
    assert cached(run, request(**item, id="again")) == len(TEXT)


def test_an_item_longer_than_a_step_is_run_whole() -> None:
    engine = make_engine(MEMORIES["whole"], batch_tokens=4, prefill_tokens=2)
    run = Run(engine, request([5, 6, 7], id="text", max_tokens=12))
    run.steps(2)
    item = request(**prompt_of([5], (picture("a"), [20]), [6]), id="seen")
    run.add(item)
    run.finish()
    check(run, item)


@pytest.mark.parametrize("memory", ["no chunks", "prompt", "whole", "cut"])
def test_a_prompt_with_several_items_does_not_wait_for_who_decodes(memory: str) -> None:
    # MEDIA-37
    engine = make_engine(MEMORIES[memory], batch_tokens=64)
    run = Run(engine, request([5, 6, 7], id="long", max_tokens=50))
    run.steps(3)
    pieces = prompt_of([5], (picture("a"), [4]), [6], (picture("b"), [4]), [7])
    item = request(**pieces, id="seen", max_tokens=4)
    run.add(item)
    run.steps(12)
    check(run, item)
    assert run.deltas["long", 0][-1].finish_reason is None


@pytest.mark.parametrize(
    ("memory", "start", "end", "most", "really", "taken"),
    [
        ("cut", 0, 7, 16, 7, "a"),
        ("cut", 0, 16, 16, 16, "ab"),
        ("apart", 0, 16, 16, 5, ""),
        ("apart", 5, 16, 16, 9, "a"),
        ("whole", 0, 7, 16, 5, ""),
        ("whole", 5, 7, 16, 9, "a"),
        ("whole", 5, 7, 8, 5, ""),
        ("whole", 0, 16, 16, 16, "ab"),
    ],
)
def test_only_items_that_are_in_a_chunk_are_taken_for_it(
    memory: str, start: int, end: int, most: int, really: int, taken: str
) -> None:
    spans = (MediaSpan(5, 4, picture("a")), MediaSpan(12, 4, picture("b")))
    asked: list[Media] = []

    def take(media: Media) -> bool:
        asked.append(media)
        return True

    assert ends_before(spans, start, end, most, MEMORIES[memory], take) == really
    assert asked == list(map(picture, taken))


def test_an_item_is_encoded_while_another_prompt_comes_to_its_own() -> None:
    engine = make_engine(MEMORIES["apart"], batch_tokens=64)
    run = Run(engine, request([5, 6, 7], id="text", max_tokens=20))
    run.steps(2)
    later = request(**prompt_of(TEXT, (picture("a"), [4]), [6]), id="later")
    now = request(**prompt_of((picture("b"), [4]), [6]), id="now")
    run.add(later)
    run.add(now)
    run.steps(1)
    assert engine._runner.encodings == 1
    run.finish()
    check(run, later)
    check(run, now)


def test_several_choices_after_the_batch_was_limited() -> None:
    """Where slots are not copied, as many as the batch has no room for any more."""
    engine = make_engine(MEMORIES["no chunks"], largest_batch=1)
    run = Run(engine, request([5, 6], id="a"), request([7, 8], id="b"))
    run.finish()
    run.add(request([5, 6, 7], id="both", n=2))
    run.finish()
    check(run, request([5, 6, 7], id="both", n=2))
