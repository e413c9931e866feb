"""What engines keep of media: as much as there is room for."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from enginebay import SizedCache

LIMIT = 12


@dataclass
class Weight:
    nbytes: int


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 15))))
def test_what_was_used_last_is_kept(puts: list[tuple[int, int]]) -> None:
    # MEDIA-39
    cache: SizedCache[Weight] = SizedCache(LIMIT)
    order: dict[int, int] = {}
    for key, size in puts:
        cache.put(key, Weight(size))
        order.pop(key, None)
        order[key] = size
        while sum(order.values()) > LIMIT and len(order) > 1:
            del order[next(iter(order))]
        assert cache.nbytes == sum(order.values())
    assert [key for key in range(6) if key in cache] == sorted(order)
    assert [cache.get(key) for key in order] == [Weight(size) for size in order.values()]
    assert cache.get(9) is None
    assert cache.pop(9) is None
    if order:
        key, size = order.popitem()
        assert cache.pop(key) == Weight(size)
        assert key not in cache
        assert cache.nbytes == sum(order.values())
    cache.clear()
    assert not cache.nbytes
    assert not any(key in cache for key in range(6))
