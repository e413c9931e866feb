"""Which engine gets a prompt, and what is remembered of those it was given."""

import subprocess
import sys
from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from enginebay import PrefixAffinity, block_hashes

BLOCK = 4
prompts = st.lists(st.integers(0, 2), max_size=24).map(tuple)
engines = st.sampled_from("abc")


def blocks_in_common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) // BLOCK


@given(st.lists(st.tuples(prompts, engines), max_size=12), prompts)
def test_what_each_engine_knows_is_its_longest_prefix_in_blocks(
    given: list[tuple[tuple[int, ...], str]], asked: tuple[int, ...]
) -> None:
    affinity = PrefixAffinity[str](block=BLOCK)
    for prompt, engine in given:
        affinity.note(affinity.hashes(prompt), engine)
    expected = {
        name: max((blocks_in_common(p, asked) for p, e in given if e == name), default=0)
        for name in "abc"
    }
    matched = affinity.matched(affinity.hashes(asked))
    assert matched == {name: depth for name, depth in expected.items() if depth}


@given(st.lists(st.tuples(prompts, engines), max_size=30), st.integers(1, 6))
def test_no_more_is_remembered_than_may_be(
    given: list[tuple[tuple[int, ...], str]], remember: int
) -> None:
    affinity = PrefixAffinity[str](block=BLOCK, remember=remember)
    for prompt, engine in given:
        affinity.note(affinity.hashes(prompt), engine)
    assert len(affinity) <= 3 * remember
    for engine in "abc":
        affinity.forget(engine)
        affinity.forget(engine)
    assert len(affinity) == 0


def test_a_long_prefix_is_worth_some_waiting_and_no_more() -> None:
    affinity = PrefixAffinity[str](block=32, weight=300)
    hashes = affinity.hashes(range(640))
    affinity.note(hashes, "a")
    assert affinity.rank(hashes, {"a": 2, "b": 0})[0] == "a"
    assert affinity.rank(hashes, {"a": 3, "b": 0})[0] == "b"


def test_a_prefix_that_all_share_draws_no_crowd() -> None:  # SCALE-4
    affinity = PrefixAffinity[int]()
    loads = dict.fromkeys(range(4), 0)
    for number in range(100):
        hashes = affinity.hashes([*range(1024), *[number] * 320])
        [best, *_] = affinity.rank(hashes, loads)
        affinity.note(hashes, best)
        loads[best] += 1
    assert max(loads.values()) <= 2 * 100 / 4


def test_other_salts_and_shorter_prompts_have_nothing_in_common() -> None:
    tokens = tuple(range(64))
    assert not set(block_hashes(tokens, 32)) & set(block_hashes(tokens, 32, "anna"))
    assert block_hashes(tokens[:31], 32) == []
    assert block_hashes(tokens[:63], 32) == block_hashes(tokens, 32)[:1]


def test_hashes_are_those_of_every_process() -> None:
    code = "from enginebay import block_hashes; print(block_hashes(range(100), 32, 'é/'))"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == str(block_hashes(range(100), 32, "é/"))
