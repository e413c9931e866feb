"""Which of several servers gets a request, and what happens when it fails there."""

import asyncio
import itertools
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack, aclosing
from threading import Event
from typing import Any

import pytest
from chat_events import PATH, event, request
from completion_events import vllm
from enginebay_remote import register_backends
from enginebay_remote.backend import RemoteBackend
from enginebay_remote.chat import ChatBackend
from enginebay_remote.options import Options
from fake import DONE, Answer, events, fake
from several import Clock, answer, answering, asked_of, backend, chat, fakes, said, started

from enginebay import (
    BackendSettings,
    BackendUnavailableError,
    ContentDelta,
    GenerationRequest,
    InvalidRequestError,
    ModelUnloadedError,
    QueueFullError,
)

LONG = " ".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=2000))
PIECE = events(event({"content": "x"})).removesuffix(DONE)
BUSY = {"error": {"message": "the queue is full"}}


def until(gate: Event) -> Iterator[bytes]:
    """An answer that says something at once and ends when the gate opens."""
    yield PIECE
    gate.wait(60)
    yield said("")


async def test_later_turns_go_where_the_chat_began() -> None:
    """Each chat to the server that has its prefix, whatever order they come in."""  # SCALE-3
    with fakes(*(answering(name) for name in "abc")) as servers:
        async with started(servers, Clock()) as made:
            chats = {number: [f"{number} {LONG}"] for number in range(30)}
            homes = {number: await answer(made, chat(*texts)) for number, texts in chats.items()}
            assert set(homes.values()) == {"a", "b", "c"}
            for _ in range(3):
                for number in random.Random(1).sample(sorted(chats), len(chats)):
                    chats[number] += [homes[number], "And then?"]
                    assert await answer(made, chat(*chats[number])) == homes[number]


async def test_a_busy_server_gets_no_more_than_its_share() -> None:
    """A prompt that all share does not draw all requests to one."""  # SCALE-4
    gate = Event()
    with fakes(*(answering(name) for name in "ab")) as servers:
        for server in servers:
            server.answers[PATH] = [(200, until(gate)) for _ in range(12)]
        async with started(servers, Clock()) as made, AsyncExitStack() as stack:
            try:
                for number in range(8):
                    asked = chat(f"You are helpful. {LONG[:800]}", "Yes.", str(number))
                    stream = await stack.enter_async_context(aclosing(made.generate(asked)))
                    await anext(stream)
                assert sorted(map(asked_of, servers)) == [4, 4]
            finally:
                gate.set()


async def test_weights() -> None:
    """One that is three times as large gets three times as many."""
    gate = Event()
    with fakes(*(answering(name) for name in "ab")) as servers:
        for server in servers:
            server.answers[PATH] = [(200, until(gate)) for _ in range(12)]
        first, second = servers
        options = {"servers": [{"url": second.url, "weight": 3}]}
        async with started([first], Clock(), **options) as made, AsyncExitStack() as stack:
            try:
                for number in range(8):
                    stream = await stack.enter_async_context(
                        aclosing(made.generate(chat(str(number))))
                    )
                    await anext(stream)
                assert [asked_of(first), asked_of(second)] == [2, 6]
            finally:
                gate.set()


async def test_prompts_of_tokens_stick_as_well() -> None:
    """With `api: completions` by their tokens, and text is tokenized by any server."""
    whole = events({"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]})
    with fakes(vllm(whole), vllm(whole)) as servers:
        for server in servers:
            server.answers["/v1/models"][0][1]["data"][0]["max_model_len"] = 10_000
            server.answers["/health"] = [(200, b"")]
        values = Options(api="completions", servers=[servers[1].url])
        settings = BackendSettings(name="m", path=servers[0].url, options=values)
        made = RemoteBackend(settings, Clock().sleep)
        await made.start()
        try:
            before = [len(server.bodies("/v1/completions")) for server in servers]

            async def home(tokens: tuple[int, ...]) -> int:
                asked = GenerationRequest(request_id="r", prompt_token_ids=tokens)
                async with aclosing(made.generate(asked)) as deltas:
                    assert "".join([delta.text async for delta in deltas]) == "x"
                counts = [len(server.bodies("/v1/completions")) for server in servers]
                [index] = [number for number in range(2) if counts[number] > before[number]]
                before[index] = counts[index]
                return index

            prompts = [tuple(range(start, start + 400)) for start in range(0, 12_000, 400)]
            homes = [await home(prompt) for prompt in prompts]
            assert set(homes) == {0, 1}
            assert [await home((*prompt, 7, 7)) for prompt in prompts] == homes
            servers[0].answers["/tokenize"] = servers[1].answers["/tokenize"] = [(503, {})]
            with pytest.raises(BackendUnavailableError, match="no server could answer"):
                await made.tokenize("x", add_special_tokens=False)
            servers[1].answers["/tokenize"] = [(200, {"tokens": [5]})]
            assert await made.tokenize("x", add_special_tokens=False) == [5]
        finally:
            await made.close()


CUT = events(event({"role": "assistant", "content": ""})).removesuffix(DONE)


@pytest.mark.parametrize(
    "failure",
    [
        (503, {"error": {"message": "server_stopping"}}),
        (500, {"error": {"message": "a bug"}}),
        (502, b"<html></html>"),
        (401, {"error": {"message": "no key"}}),
        (404, {"error": {"message": "no such model"}}),
        (200, CUT),
        (200, CUT + events(event({}, "abort"))),
        (200, events({"error": {"message": "busy", "code": 429}})),
        (429, BUSY),
        (200, DONE),
        (200, CUT + DONE),
        *(
            (200, CUT + events(nonsense))
            for nonsense in (
                {"choices": [{"index": "a", "delta": "x"}]},
                {"choices": [{"index": "a", "delta": {"content": "x"}}]},
                {"choices": 3},
                event({"content": 3}),
                event({"content": "x"}, "no such reason"),
            )
        ),
    ],
)
async def test_what_has_said_nothing_moves(failure: Answer) -> None:
    """To another server, which answers whole."""  # SCALE-6
    answers = answering("bad")
    answers[PATH] = [failure]
    with fakes(answers, answering("good")) as servers:
        async with started(servers, Clock()) as made:
            for number in range(24):
                assert await answer(made, chat(f"{number} {LONG}")) == "good"
        assert asked_of(servers[0]) >= 1


async def test_what_has_said_something_fails() -> None:
    """It is not said twice; the error says where it broke off. Others go on."""  # SCALE-5
    gate = Event()
    broken, whole = answering("a"), answering("b")
    broken[PATH] = [(200, PIECE)]
    whole[PATH] = [(200, until(gate))]
    with fakes(broken, whole) as servers:
        bad, good = servers
        async with started(servers, Clock()) as made, AsyncExitStack() as stack:
            running = []
            while not (asked_of(bad) and asked_of(good)):
                asked = chat(str(len(running)))
                stream = await stack.enter_async_context(aclosing(made.generate(asked)))
                assert (await anext(stream)).parts == (ContentDelta("x"),)
                running.append(stream)
            gate.set()
            said: list[str] = []
            for stream in running:
                try:
                    said.append("".join([str(delta) async for delta in stream]) and "whole")
                except BackendUnavailableError as error:
                    said.append(error.message)
            assert len(said) - said.count("whole") == asked_of(bad)
            for message in {*said} - {"whole"}:
                assert message.startswith(f"the answer of {bad.url} broke off")
                assert "send the request again" in message


async def test_nonsense_in_mid_answer(caplog: pytest.LogCaptureFixture) -> None:
    """Is the server's failure, which is named and avoided; readers are told what, not how."""
    talks = answering("x")
    talks[PATH] = [(200, PIECE + events({"choices": 3}))]
    with fakes(talks, talks) as servers:
        async with started(servers, Clock()) as made:
            with pytest.raises(BackendUnavailableError) as raised:
                await answer(made)
        [asked] = [server for server in servers if asked_of(server)]
    said = "the remote server says what is no chat completion"
    assert raised.value.message.startswith(f"the answer of {asked.url} broke off")
    assert raised.value.message.endswith(f"({said})")
    assert f"{asked.url} is avoided: {said}" in caplog.text


@pytest.mark.parametrize(("retries", "asked"), [(0, 1), (1, 2), (2, 3)])
async def test_how_often_a_request_moves(retries: int, asked: int) -> None:
    """`retries` times, never to the same server."""
    failing = answering("x")
    failing[PATH] = [(503, {"error": {"message": "loading"}})]
    with fakes(*[failing] * 5) as servers:
        async with started(servers, Clock(), retries=retries) as made:
            with pytest.raises(BackendUnavailableError, match="loading"):
                await answer(made)
        assert sum(map(asked_of, servers)) == asked
        assert max(map(asked_of, servers)) == 1


async def test_what_is_wrong_with_a_request_does_not_move() -> None:
    """Another server would say the same, and nobody is avoided for it."""
    wrong = answering("x")
    wrong[PATH] = [(400, {"error": {"message": "no", "param": "top_k"}})]
    with fakes(wrong, wrong) as servers:
        clock = Clock()
        async with started(servers, clock) as made:
            with pytest.raises(InvalidRequestError):
                await answer(made)
            assert await clock.waits() == [5, 5]
        assert sum(map(asked_of, servers)) == 1


async def test_all_busy() -> None:
    """The 429 is passed on, with the shortest time after which one is free."""
    first, second = answering("a"), answering("b")
    first[PATH], second[PATH] = (
        [(429, BUSY, {"Retry-After": "9"})],
        [(429, BUSY, {"Retry-After": "4"})],
    )
    with fakes(first, second) as servers:
        clock = Clock()
        async with started(servers, clock) as made:
            with pytest.raises(QueueFullError, match="the queue is full") as raised:
                await answer(made)
            assert raised.value.retry_after == 4
            assert made.unavailable is None
            assert await clock.waits() == [5, 5]  # busy is not ill
        assert list(map(asked_of, servers)) == [1, 1]


async def test_one_server_passes_on_when_to_come_again() -> None:
    """As several do."""
    answers = answering("a")
    answers[PATH] = [(429, BUSY, {"Retry-After": "9"})]
    with fake(answers) as server:
        made = backend([server], Clock(), retries=0)
        await made.start()
        with pytest.raises(QueueFullError) as raised:
            await answer(made)
        await made.close()
    assert raised.value.retry_after == 9


async def test_closing_a_stream_closes_its_connection() -> None:
    """Whichever server it is at, and its place there is free."""
    endless: Any = answering("x")
    endless[PATH] = [(200, itertools.repeat(PIECE))]
    with fakes(endless, endless) as servers:
        async with started(servers, Clock()) as made:
            async with aclosing(made.generate(chat("Hi"))) as deltas:
                assert (await anext(deltas)).parts == (ContentDelta("x"),)
            [asked] = [server for server in servers if asked_of(server)]
            assert await asyncio.to_thread(asked.left.wait, 60)
            pool: Any = made._servers
            assert [each.running for each in pool._upstreams.values()] == [0, 0]


async def test_closing_the_backend_ends_what_is_under_way() -> None:
    """At once, with the error that says so, and without another server being asked."""
    endless: Any = answering("x")
    endless[PATH] = [(200, itertools.repeat(PIECE))]
    with fakes(endless, endless) as servers:
        async with started(servers, Clock()) as made:
            deltas = made.generate(chat("Hi"))
            await anext(deltas)
            await made.close()
            with pytest.raises(ModelUnloadedError):
                async for _ in deltas:
                    pass
        assert sum(map(asked_of, servers)) == 1


async def test_several_choices_count_as_many() -> None:
    """Where they run."""
    gate = Event()
    with fakes(*(answering(name) for name in "ab")) as servers:
        for server in servers:
            server.answers[PATH] = [(200, until(gate)) for _ in range(12)]
        async with started(servers, Clock(), server="vllm") as made, AsyncExitStack() as stack:
            try:
                for n in (4, 1, 1, 1):
                    stream = made.generate(request(n=n))
                    await stack.enter_async_context(aclosing(stream))
                    await anext(stream)
                assert sorted(map(asked_of, servers)) == [1, 3]
            finally:
                gate.set()


async def test_chats_stick_over_a_reload() -> None:
    """The backend with the new options goes on with what the one before it knew."""
    made: dict[str, Any] = {}
    register_backends(lambda name, create, options: made.update({name: create}))
    with fakes(*(answering(name) for name in "abc")) as servers:
        a, b, c = servers

        def create(drain: bool) -> ChatBackend:
            others = [b.url, {"url": c.url, "drain": drain}]
            options = Options.model_validate({"servers": others})
            return made["remote"](BackendSettings(name="m", path=a.url, options=options))

        chats = [chat(f"{number} {LONG}") for number in range(30)]
        old = create(drain=False)
        await old.start()
        homes = [await answer(old, each) for each in chats]
        assert set(homes) == {"a", "b", "c"}
        new = create(drain=True)
        await new.start()
        await old.close()
        try:
            for each, home in zip(chats, homes, strict=True):
                assert await answer(new, each) in ({home} if home != "c" else {"a", "b"})
        finally:
            await new.close()
