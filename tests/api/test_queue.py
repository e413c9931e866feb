"""Requests wait for their turn at the engine, as many as the config allows."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import openai
import pytest

from enginebay.config.keys import Key
from enginebay.contract.errors import BackendUnavailableError
from enginebay.server.access.key_store import KeyStore
from enginebay.server.access.keys import digest_of
from tests.held import Holding, holding

Answer = Future[httpx2.Response]
Ask = Callable[..., Answer]


@contextmanager
def asking(at: Holding) -> Iterator[Ask]:
    """`ask(prompt, key="none", path=..., **body)` sends a request from a thread of its own."""
    with ThreadPoolExecutor(20) as threads:

        def ask(
            prompt: object, key: str = "none", path: str = "completions", **body: object
        ) -> Answer:
            body["input" if path == "embeddings" else "prompt"] = prompt
            return threads.submit(
                httpx2.post,
                f"{at.server.url}/v1/{path}",
                json={"model": "scripted", **body},
                headers={"x-api-key": key},
                timeout=60,
            )

        yield ask


def text_of(answer: Answer) -> str:
    return "".join(choice["text"] for choice in answer.result().json()["choices"])


def error_of(answer: Answer) -> tuple[int, str]:
    response = answer.result()
    return response.status_code, response.json()["error"]["code"]


def keys_of(*users: str) -> KeyStore:
    """Keys that are the names of their users; there is one of an admin, too."""
    keys = [Key(name, digest_of(name)) for name in users]
    return KeyStore(Path("no such file"), [*keys, Key("admin", digest_of("admin"), "admin")])


def test_an_engine_gets_a_quarter_more_than_it_computes_together() -> None:
    with holding(together=4) as at, asking(at) as ask:
        assert at.gate.size.max_queue == 256
        answers = [ask(f"{number}") for number in range(8)]
        at.queued(3)
        assert (len(at.held.running), at.gate.running) == (5, 5)
        at.let_go(*map(str, range(8)))
        assert [text_of(answer) for answer in answers] == ["ab"] * 8
        at.nothing_is_left()


@pytest.mark.parametrize("stream", [False, True])
def test_priority_and_a_full_queue(stream: bool) -> None:
    # VLLM-35 VLLM-36 VLLM-83
    with holding(together=8, max_running=1, max_queue=2) as at, asking(at) as ask:
        first = ask("first", stream=stream)
        at.begun("first")
        low = ask("low", priority=3, stream=stream)
        at.queued(1)
        high = ask("high", priority=-3, stream=stream)
        at.queued(2)
        with pytest.raises(openai.RateLimitError, match="queue of 2") as caught:
            at.server.openai.completions.create(
                model="scripted", prompt="last", stream=stream, extra_body={"priority": 9}
            )
        assert caught.value.code == "queue_full"
        assert int(caught.value.response.headers["retry-after"]) == 2
        at.let_go("first", "low", "high")
        assert [answer.result().status_code for answer in (first, low, high)] == [200] * 3
        assert at.held.begun == ["first", "high", "low"]
        at.nothing_is_left()


@pytest.mark.parametrize("stream", [False, True])
def test_who_has_waited_too_long_is_told(stream: bool) -> None:
    with holding(max_running=1, queue_timeout=0.02) as at, asking(at) as ask:
        first = ask("first", stream=stream)
        at.begun("first")
        late = ask("late", stream=stream)
        assert error_of(late) == (429, "queue_full")
        assert int(late.result().headers["retry-after"]) == 2
        at.let_go("first")
        assert first.result().status_code == 200
        assert at.held.begun == ["first"]
        at.nothing_is_left()


def test_keys_take_turns() -> None:
    keys = keys_of("ann", "bob")
    with holding(keys=keys, max_running=1, max_queue=6) as at, asking(at) as ask:
        answers = [ask("ann 0", key="ann")]
        at.begun("ann 0")
        for waiting, prompt in enumerate(("ann 1", "ann 2", "ann 3", "bob 1", "bob 2", "ann 4")):
            answers.append(ask(prompt, key=prompt[:3]))
            at.queued(waiting + 1)
        assert [request.position for request in at.requests] == [None, 1, 3, 4, 0, 2, 5]
        late = ask("bob 3", key="bob")
        assert error_of(answers[-1]) == (429, "queue_full")  # ann's queue is the longer one
        at.queued(6)
        at.let_go(*(f"{name} {number}" for name in ("ann", "bob") for number in range(5)))
        assert {text_of(answer) for answer in (*answers[:-1], late)} == {"ab"}
        expected = ["ann 0", "ann 1", "bob 1", "ann 2", "bob 2", "ann 3", "bob 3"]
        assert at.held.begun == expected
        at.nothing_is_left()


@pytest.mark.parametrize(
    ("together", "settings"), [(None, {"max_running": 3}), (3, {}), (8, {"max_running": 3})]
)
@pytest.mark.parametrize("body", [{}, {"priority": -99}, {"n": 2}, {"stream": True}])
def test_one_key_does_not_hold_all_slots(
    together: int | None, settings: dict[str, int], body: dict[str, object]
) -> None:
    """SEC-10: another key's request begins at once, whatever the first one has sent."""
    keys = keys_of("ann", "bob")
    with holding(together, keys=keys, **settings) as at, asking(at) as ask:
        greedy = [ask("ann", key="ann", **body) for _ in range(6)]
        lists = ask(["ann"] * 6, key="ann", **body)
        begun = 1 if "n" in body else 2
        at.until(lambda: len(at.held.running) == begun and len(at.requests) == 7)
        bob = ask("bob", key="bob")
        at.until(lambda: "bob" in at.held.running)
        assert at.held.running.count("ann") == begun
        at.let_go("bob")
        assert text_of(bob) == "ab"
        at.let_go("ann")
        assert {answer.result().status_code for answer in (*greedy, lists)} == {200}
        at.nothing_is_left()


def test_choices_and_prompts_count() -> None:
    with holding(max_running=4, max_queue=1) as at, asking(at) as ask:
        choices = ask("n", n=3)
        at.until(lambda: at.gate.running == 3)
        prompts = ask(["1", "2", "3"])
        at.until(lambda: at.gate.running == 4)
        assert at.held.running == ["n", "1"]
        assert at.gate.waiting == 0  # that request has begun
        waiting = ask("waits")
        at.queued(1)
        at.let_go("n")
        assert text_of(choices) == "ababab"
        at.until(lambda: at.held.running == ["1", "2", "3", "waits"])
        at.let_go("1", "2", "3", "waits")
        assert (text_of(prompts), text_of(waiting)) == ("ababab", "ab")
        at.nothing_is_left()


def test_a_key_says_the_priority_of_all_its_requests() -> None:
    low, high = (
        Key(name, digest_of(name), priority=number) for name, number in (("low", 5), ("high", -5))
    )
    keys = KeyStore(Path("no such file"), [low, high])
    with holding(keys=keys, max_running=1) as at, asking(at) as ask:
        answers = [ask("first", key="low")]
        at.begun("first")
        for waiting, (prompt, key, path, body) in enumerate(
            (
                ("a", "low", "completions", {"priority": -9}),
                ("b", "low", "embeddings", {}),
                ("c", "high", "embeddings", {}),
                ("d", "high", "completions", {"priority": 9}),
            )
        ):
            answers.append(ask(prompt, key=key, path=path, **body))
            at.queued(waiting + 1)
        at.let_go("first", *"abcd")
        assert [answer.result().status_code for answer in answers] == [200] * 5
        assert at.held.begun == ["first", "c", "d", "a", "b"]


def test_embeddings_take_turns_with_the_rest() -> None:
    with holding(max_running=1) as at, asking(at) as ask:
        first = ask("first")
        at.begun("first")
        many = ask(["e"] * 65, path="embeddings")
        at.queued(1)
        last = ask("last")
        at.queued(2)
        at.let_go("first", "last", "e")
        assert [answer.result().status_code for answer in (first, many, last)] == [200] * 3
        assert at.held.begun == ["first", "e", "last", "e"]
        at.nothing_is_left()


def test_a_client_that_leaves_waits_no_longer() -> None:
    with holding(max_running=1) as at, asking(at) as ask:
        first = ask("first")
        at.begun("first")
        client = httpx2.Client(timeout=0.2)
        with pytest.raises(httpx2.ReadTimeout), client:
            client.post(f"{at.server.url}/v1/completions", json={"prompt": "gone"})
        at.queued(0)
        at.let_go("first")
        assert text_of(first) == "ab"
        assert at.held.begun == ["first"]
        at.nothing_is_left()


def test_models_that_share_an_engine_share_its_gate() -> None:
    with holding(max_running=1, likes=["other"]) as at, asking(at) as ask:
        first = ask("first")
        at.begun("first")
        other = ask("other", model="other")
        at.queued(1)
        numbers = at.server.http.get("/v1/stats").json()["models"]
        assert [(each["running"], each["waiting"]) for each in numbers] == [(1, 0), (0, 1)]
        at.let_go("first", "other")
        assert [text_of(answer) for answer in (first, other)] == ["ab", "ab"]
        assert at.held.begun == ["first", "other"]
        at.nothing_is_left()


def test_a_model_that_closes_its_gate_answers_what_has_begun() -> None:
    with holding(max_running=1) as at, asking(at) as ask:
        first = ask(["first", "second"])
        at.begun("first")
        waiting = ask("waiting")
        at.queued(1)

        async def close() -> None:
            at.gate.close(BackendUnavailableError("the model is being unloaded", retry_after=7))

        at.server.run(close())
        assert error_of(waiting) == (503, "backend_unavailable")
        late = ask("late")
        assert error_of(late) == (503, "backend_unavailable")
        assert late.result().headers["retry-after"] == "7"
        at.let_go("first", "second")
        assert text_of(first) == "abab"
        at.nothing_is_left()
