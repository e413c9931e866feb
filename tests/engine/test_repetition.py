"""When a choice repeats itself. ENG-4"""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from enginebay.contract.sampling_params import RepetitionDetection, SamplingParams
from enginebay.engine.repetition import RepetitionWatch, watches_repetition

FEW = st.lists(st.integers(0, 2), max_size=60)


def loops(token_ids: Sequence[int], window: int) -> bool:
    """Whether the last tokens are a pattern that occurs at least twice in them."""
    last = token_ids[-window:]
    return len(last) == window and any(
        all(last[at] == last[at - size] for at in range(size, window))
        for size in range(1, window // 2 + 1)
    )


def repeats(token_ids: Sequence[int], asked: RepetitionDetection) -> bool:
    for size in range(asked.min_pattern_size, asked.max_pattern_size + 1):
        last = token_ids[-size:]
        whole = token_ids[-size * asked.min_count :]
        if len(last) == size and list(whole) == list(last) * asked.min_count:
            return True
    return False


@given(FEW, st.integers(2, 12))
def test_the_window(token_ids: list[int], window: int) -> None:
    params = SamplingParams(loop_detect_window=window)
    watch = RepetitionWatch(params)
    for end, token_id in enumerate(token_ids, start=1):
        assert watch.add(token_id) == loops(token_ids[:end], window)


@given(FEW, st.integers(1, 5), st.integers(0, 4), st.integers(2, 5), st.sampled_from([0, 1, 7]))
def test_patterns(token_ids: list[int], least: int, more: int, count: int, window: int) -> None:
    asked = RepetitionDetection(
        max_pattern_size=least + more, min_pattern_size=least, min_count=count
    )
    params = SamplingParams(repetition_detection=asked, loop_detect_window=window)
    watch = RepetitionWatch(params)
    for end, token_id in enumerate(token_ids, start=1):
        said = token_ids[:end]
        looping = window > 1 and loops(said, window)
        assert watch.add(token_id) == (repeats(said, asked) or looping)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(40, 90))
def test_always_on_one(pattern: list[int], window: int) -> None:
    """However long the pattern, once it has filled a window twice its size."""
    window = max(window, 2 * len(pattern))
    watch = RepetitionWatch(SamplingParams(loop_detect_window=window))
    assert any(watch.add(pattern[at % len(pattern)]) for at in range(window))


@given(st.integers(2, 300))
def test_never_without_one(window: int) -> None:
    watch = RepetitionWatch(SamplingParams(loop_detect_window=window))
    assert not any(watch.add(token_id) for token_id in range(3000))


def test_off() -> None:
    for params in (
        SamplingParams(),
        SamplingParams(loop_detect_window=1),
        SamplingParams(repetition_detection=RepetitionDetection()),
    ):
        assert not watches_repetition(params)
