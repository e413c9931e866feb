"""Deltas that piled up while a client was slow."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import ContentDelta, Delta, Prefill, ReasoningDelta, TokenLogprob
from enginebay.chat.answer.logprobs import LOWEST, finite
from enginebay.engine.streams import DeltaStream, merged_deltas


def test_deltas_with_logprobs_keep_their_place() -> None:
    """Those of a chat have them only where there is content."""
    first, last = Delta(parts=(ReasoningDelta("a"),)), Delta(finish_reason="stop")
    content = Delta(parts=(ContentDelta("b"),), logprobs=(TokenLogprob(-1, "b", -0.5),))
    other = Delta(index=1, parts=(ContentDelta("c"),))
    merged = list(merged_deltas([other, first, content, content, last]))
    mine = [delta for delta in merged if isinstance(delta, Delta) and not delta.index]
    assert mine == [first, content, content, last]
    assert other in merged


def test_progress_with_a_prompt_stays_apart() -> None:
    """It comes before the tokens, which are joined."""
    half, whole = (Delta(prefill=Prefill(4, 0, done)) for done in (2, 4))
    first, last = Delta(text="a", token_ids=(1,), prefill_tokens=4), Delta(finish_reason="stop")
    *told, joined = merged_deltas([half, whole, first, last])
    assert told == [half, whole]
    assert isinstance(joined, Delta)
    assert (joined.text, joined.prefill_tokens, joined.prefill) == ("a", 4, None)


@pytest.mark.parametrize("logprob", [float("-inf"), float("inf"), float("nan")])
def test_what_json_cannot_say(logprob: float) -> None:
    assert finite(logprob) == LOWEST


class Reader:
    """Reads a stream as an answer does; `said` is what it sends, in the order that clients see.

    What is handed over to it goes there as well, while `takes`, with a mark.
    """

    def __init__(self) -> None:
        self.stream = DeltaStream()
        self.stream.hand_over = self._take
        self.takes = True
        self.fails = False
        self.busy = 0  # turns of the event loop that it takes to send
        self.said: list[tuple[str, str]] = []
        self.failed: Exception | None = None
        self.waits = False

    def _take(self, delta: Delta) -> bool:
        assert self.waits, "it is sending something else"
        if self.fails:
            raise ValueError("no")
        if self.takes:
            self.said.append(("at once", delta.text))
        return self.takes

    async def run(self) -> None:
        try:
            while True:
                self.waits = True
                items = await self.stream.take()
                self.waits = False
                for item in items:
                    for _ in range(self.busy):
                        await asyncio.sleep(0)
                    assert isinstance(item, Delta)
                    self.said.append(("read", item.text))
        except ValueError as error:
            self.failed = error


MOVES = st.sampled_from(["put", "put", "put", "ahead", "turn", "takes", "leaves", "busy", "idle"])


@given(st.lists(MOVES, max_size=60), st.booleans())
def test_deltas_keep_their_order(moves: list[str], fails: bool) -> None:
    """Whoever sends them, whatever the engine, the event loop and the client do in between."""

    async def play() -> None:
        reader = Reader()
        reading = asyncio.create_task(reader.run())
        number = 0
        for move in moves:
            match move:
                case "put" | "ahead":
                    item = Delta(text=chr(0x100 + number), token_ids=(number,))
                    reader.stream.put(item, more=move == "ahead")
                    number += 1
                case "turn":
                    await asyncio.sleep(0)
                case "takes" | "leaves":
                    reader.takes = move == "takes"
                case "busy" | "idle":
                    reader.busy = 2 if move == "busy" else 0
        for _ in range(3 * len(moves) + 3):
            await asyncio.sleep(0)
        assert "".join(text for _, text in reader.said) == "".join(
            chr(0x100 + each) for each in range(number)
        )
        assert all(len(text) == 1 for how, text in reader.said if how == "at once")
        reader.fails = fails
        reader.stream.put(Delta(text="!"))
        reader.stream.put(Delta(text="?"))
        for _ in range(10):
            await asyncio.sleep(0)
        if fails:
            assert isinstance(reader.failed, ValueError)
            assert not {"!", "?"} & {text for _, text in reader.said}
        else:
            assert "".join(text for _, text in reader.said).endswith("!?")
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    asyncio.run(play())


async def test_what_is_on_its_way_is_waited_for() -> None:
    """Tokens that come together are one event."""
    reader = Reader()
    reading = asyncio.create_task(reader.run())
    await asyncio.sleep(0)
    for text, more in (("a", True), ("b", True), ("c", False)):
        reader.stream.put(Delta(text=text), more=more)
    for _ in range(3):
        await asyncio.sleep(0)
    reader.stream.put(Delta(text="d"))
    assert reader.said == [("read", "abc"), ("at once", "d")]
    reading.cancel()


async def test_seconds_of_compiling_are_not_lost() -> None:
    """They come with the first token, be that handed over, joined or read."""
    stream = DeltaStream()
    stream.compiled = 2.0
    stream.put(Delta(prefill=Prefill(4, 0, 4)))
    stream.put(Delta(text="a"))
    stream.put(Delta(text="b"))
    told, joined = await stream.take()
    assert isinstance(told, Delta)
    assert isinstance(joined, Delta)
    assert (told.grammar_init_s, joined.text, joined.grammar_init_s) == (0.0, "ab", 2.0)
    seen: list[float] = []
    stream.compiled = 3.0
    stream.hand_over = lambda delta: not seen.append(delta.grammar_init_s)
    reading = asyncio.create_task(stream.take())
    await asyncio.sleep(0)
    stream.put(Delta(text="c"))
    stream.put(Delta(text="d"))
    assert seen == [3.0, 0.0]
    reading.cancel()
