"""The index of saved sequences, against a plain search through all of them."""

from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.kv_store.prefix_index import PrefixIndex, common, count, packed

# Few different tokens, so that sequences share much; also those that stand for media.
tokens = st.lists(st.sampled_from([0, 1, 255, 256, -1, -(2**55), 2**31]), min_size=1, max_size=12)
keys = st.sampled_from([b"a", b"b"])
entries = st.lists(st.tuples(keys, tokens), max_size=20)


def shared(first: list[int], second: list[int]) -> int:
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return length


def indexed(there: list[tuple[bytes, list[int]]]) -> PrefixIndex[tuple[bytes, list[int]]]:
    index: PrefixIndex[tuple[bytes, list[int]]] = PrefixIndex()
    for key, ids in there:
        index.add(key, packed(ids), (key, ids))
    return index


@given(tokens, tokens)
def test_the_common_prefix(first: list[int], second: list[int]) -> None:
    assert common(packed(first), packed(second)) == shared(first, second)
    assert count(packed(first)) == len(first)


@given(entries, keys, tokens)
def test_the_longest_is_that_of_a_plain_search(
    there: list[tuple[bytes, list[int]]], key: bytes, wanted: list[int]
) -> None:
    found = indexed(there).longest(key, packed(wanted))
    best = max((shared(ids, wanted) for other, ids in there if other == key), default=0)
    assert (found[1] if found else 0) == best
    if found:
        (other, ids), length = found
        assert other == key  # ENG-8: never one of another salt, adapter or model
        assert shared(ids, wanted) == length


@given(entries, keys, tokens)
def test_the_longest_whole_one_is_that_of_a_plain_search(
    there: list[tuple[bytes, list[int]]], key: bytes, wanted: list[int]
) -> None:
    found = indexed(there).longest_whole(key, packed(wanted))
    whole = [ids for other, ids in there if other == key and ids == wanted[: len(ids)]]
    assert (found[0][1] if found else []) == max(whole, key=len, default=[])


@given(entries, keys, tokens)
def test_those_within_are_those_of_a_plain_search(
    there: list[tuple[bytes, list[int]]], key: bytes, wanted: list[int]
) -> None:
    found = indexed(there).within(key, packed(wanted), 7 / 8)
    expected = {
        tuple(ids) for k, ids in there if k == key if shared(ids, wanted) >= 7 / 8 * len(ids)
    }
    assert sorted(tuple(ids) for _, ids in found) == sorted(expected)


@given(entries, entries)
def test_what_was_removed_is_gone(
    there: list[tuple[bytes, list[int]]], removed: list[tuple[bytes, list[int]]]
) -> None:
    index = indexed(there)
    items = list(index)
    for item in items:
        if item in removed:
            index.remove(item[0], packed(item[1]), item)
    left = [item for item in items if item not in removed]
    assert sorted(index) == sorted(left)
    for key, ids in left:
        found = index.longest(key, packed(ids))
        assert found is not None
        assert found[1] == len(ids)
