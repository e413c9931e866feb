"""One answer of several requests, and what becomes of it when something goes wrong."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from enginebay.chat.answer.generation import merge
from enginebay.contract.errors import ServingError
from enginebay.contract.types import Update


async def stream(
    *indices: int, closed: list[int] | None = None, error: bool = False
) -> AsyncGenerator[Update, None]:
    try:
        for index in indices:
            await asyncio.sleep(0)
            yield Update(index, [])
        if error:
            raise ServingError("no")
        if closed is not None:
            await asyncio.Event().wait()
    finally:
        if closed is not None:
            closed.append(indices[0])


async def test_streams_are_merged_as_they_arrive() -> None:
    merged = [update.index async for update in merge([stream(0, 0, 0), stream(1, 1, 1)])]
    assert sorted(merged) == [0, 0, 0, 1, 1, 1]
    assert merged != sorted(merged)


async def test_an_error_in_one_stream_ends_all() -> None:
    closed: list[int] = []
    with pytest.raises(ServingError):
        async for _ in merge([stream(0, closed=closed), stream(1, error=True)]):
            pass
    assert closed == [0]


async def test_closing_closes_every_stream() -> None:
    closed: list[int] = []
    merged = merge([stream(0, closed=closed), stream(1, closed=closed)])
    await anext(merged)
    await anext(merged)
    await merged.aclose()
    assert sorted(closed) == [0, 1]
