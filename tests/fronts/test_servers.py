"""Several servers of one cluster over HTTP: what they share, and what happens when one is lost."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from enginebay.config.keys import Key
from enginebay.server.access.keys import digest_of
from enginebay_cluster.fronts.said import Setting, SettingKey
from tests.fronts.servers import OneServer, Servers, servers

ANN, BOB = Key("ann", digest_of("ann")), Key("bob", digest_of("bob"))
ADMIN = Key("root", digest_of("root"), "admin")


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


def requests(server: OneServer, name: str | None = None) -> list[dict[str, Any]]:
    headers = key(name) if name else None
    body = server.server.http.get("/v1/requests", headers=headers).json()
    assert (body["unanswered"], body["problem"]) == ([], None)
    data: list[dict[str, Any]] = body["data"]
    return data


def post(
    server: OneServer, path: str, body: Any = None, name: str | None = None
) -> tuple[int, Any]:
    headers = key(name) if name else None
    response = server.server.http.post(f"/v1{path}", json=body, headers=headers)
    return response.status_code, response.json()


def get(server: OneServer, path: str) -> Any:
    response = server.server.http.get(f"/v1{path}")
    assert response.status_code == 200, response.text
    return response.json()


def let_go(at: Servers, *prompts: str) -> None:
    for server in at.all:
        server.let_go(*prompts)


def no_choice_runs(server: OneServer) -> Callable[[], bool]:
    return lambda: server.gate.running == 0


def test_turns_are_those_of_all_servers() -> None:
    # SCALE-11
    with servers(max_running=3) as at:
        one, two = at.all
        asked = {f"{n}": at.ask(at.all[n % 2], f"{n}") for n in range(8)}
        at.until(lambda: len(at.running()) == 3)
        at.until(lambda: one.gate.waiting + two.gate.waiting == 5)
        done: list[str] = []
        while len(done) < 8:
            assert len(at.running()) <= 3
            [name, *_] = at.running()
            let_go(at, name)
            assert asked[name].result().json()["choices"][0]["text"] == "ab"
            done.append(name)
            at.until(lambda: len(at.running()) == min(3, 8 - len(done)))
        for server in at.all:
            server.until(no_choice_runs(server))


def test_limits_of_requests_hold_over_servers() -> None:
    # SCALE-10
    limited = Key("ann", digest_of("ann"), requests_per_minute=5)
    with servers(keys=[limited, ADMIN]) as at:
        let_go(at, "x")
        answers = []
        for number in range(12):
            answers.append(at.ask(at.all[number % 2], "x", headers=key("ann")).result())
        assert [each.status_code for each in answers] == [200] * 5 + [429] * 7
        left = [int(each.headers["x-ratelimit-remaining-requests"]) for each in answers]
        assert left == [4, 3, 2, 1, 0] + [0] * 7
        assert answers[-1].json()["error"]["code"] == "rate_limit_exceeded"


def test_requests_at_once_hold_over_servers() -> None:
    # SCALE-10
    limited = Key("ann", digest_of("ann"), concurrent_requests=2)
    with servers(keys=[limited, ADMIN]) as at:
        one, two = at.all
        running = [at.ask(one, "a", headers=key("ann")), at.ask(two, "b", headers=key("ann"))]
        at.until(lambda: sorted(at.running()) == ["a", "b"])
        refused = [at.ask(server, "c", headers=key("ann")).result() for server in at.all]
        assert [each.status_code for each in refused] == [429, 429]
        let_go(at, "a", "b", "d")
        assert [each.result().status_code for each in running] == [200, 200]
        for server in at.all:
            server.server.settle()
        held = at.fake.object()._members
        at.until(lambda: not any(member.held for member in held))
        assert at.ask(two, "d", headers=key("ann")).result().status_code == 200


def test_requests_of_all_servers_are_listed_to_those_who_may_see_them() -> None:
    # SCALE-9
    with servers(max_running=1, keys=[ANN, BOB, ADMIN]) as at:
        one, two = at.all
        answers = [at.ask(one, "a", headers=key("ann"))]
        at.until(lambda: at.running() == ["a"])
        answers += [at.ask(two, "b", headers=key("bob"))]
        two.queued(1)
        answers += [at.ask(one, "c", headers=key("ann"))]
        one.queued(1)
        for server in at.all:
            everything = requests(server, "root")
            assert [(each["key"], each["state"]) for each in everything] == [
                ("ann", "running"),
                ("bob", "queued"),
                ("ann", "queued"),
            ]
            assert [each["position"] for each in everything] == [None, 0, 1]
            assert [each["front"].rpartition(":")[2] for each in everything] == [
                "8001",
                "8002",
                "8001",
            ]
            assert [each["key"] for each in requests(server, "ann")] == ["ann", "ann"]
            assert [each["key"] for each in requests(server, "bob")] == ["bob"]
        let_go(at, "a", "b", "c")
        assert [answer.result().status_code for answer in answers] == [200] * 3


@pytest.mark.parametrize("state", ["running", "queued"])
def test_a_request_is_cancelled_through_another_server(state: str) -> None:
    # SCALE-9
    with servers(max_running=1, keys=[ANN, BOB, ADMIN]) as at:
        one, two = at.all
        first = at.ask(one, "a", headers=key("ann"))
        at.until(lambda: at.running() == ["a"])
        second = at.ask(one, "b", headers=key("ann"))
        one.queued(1)
        id = next(each["id"] for each in requests(two, "root") if each["state"] == state)
        status, body = post(two, f"/requests/{id}/cancel", name="bob")
        assert (status, body["error"]["code"]) == (404, "request_not_found")
        assert post(two, f"/requests/{id}/cancel", name="ann") == (
            200,
            {"id": id, "object": "request", "cancelled": True},
        )
        if state == "running":
            assert first.result().json()["choices"][0]["finish_reason"] == "abort"
            at.until(lambda: at.running() == ["b"])
            let_go(at, "b")
            assert second.result().status_code == 200
        else:
            assert second.result().json()["error"]["code"] == "request_cancelled"
            let_go(at, "a")
            assert first.result().status_code == 200
        assert post(two, f"/requests/{id}/cancel", name="root")[0] == 404


def test_thought_is_ended_through_another_server() -> None:
    with servers() as at:
        one, two = at.all
        answer = at.ask(one, "a")
        at.until(lambda: at.running() == ["a"])
        [request] = one.requests
        status, body = post(two, f"/requests/{request.id}/end_reasoning")
        assert (status, body["error"]["code"]) == (409, "not_reasoning")
        asked: list[int] = []

        async def end() -> int:
            asked.append(1)
            return 2

        request.end_reasoning = end
        status, body = post(two, f"/requests/{request.id}/end_reasoning")
        assert (status, body["ended"], asked) == (200, 2, [1])
        assert post(two, "/requests/nothing/end_reasoning")[0] == 404
        let_go(at, "a")
        answer.result()


def respond(server: OneServer, text: str, previous: str | None = None) -> Any:
    return server.server.openai.responses.create(
        model="chat", input=text, previous_response_id=previous
    )


def test_an_answer_is_gone_on_from_at_another_server() -> None:
    with servers() as at:
        one, two = at.all
        let_go(at, "hi", "more")
        first = respond(one, "hi")
        second = respond(two, "more", first.id)
        assert two.server.openai.responses.retrieve(first.id).id == first.id
        third = respond(one, "more", second.id)
        assert third.previous_response_id == second.id
        items = one.server.openai.responses.input_items.list(second.id).data
        assert get(two, f"/responses/{second.id}/input_items")["data"][0]["id"] == items[0].id
        two.server.openai.responses.delete(first.id)
        for server in at.all:
            with pytest.raises(openai.NotFoundError):
                server.server.openai.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError, match="resp_nothing"):
            respond(two, "more", "resp_nothing")


def test_an_answer_is_found_elsewhere_as_soon_as_its_client_has_it() -> None:
    """Also when its way to the ledger takes longer than the client's to the other server."""
    with servers() as at:
        one, two = at.all
        let_go(at, "hi", "more")
        looked_for = asyncio.Event()

        async def slow(front: str, method: str) -> None:
            if method == "response_chain":
                looked_for.set()
            if method == "put_responses":
                await looked_for.wait()

        at.fake.before = slow
        first = respond(one, "hi")
        assert respond(two, "more", first.id).previous_response_id == first.id


def test_answers_are_handed_on_when_the_ledger_is_back() -> None:
    with servers() as at:
        one, two = at.all
        let_go(at, "hi", "more")
        client = one.server.openai
        lost: list[str] = []

        async def lose(front: str, method: str) -> None:
            if method == "put_responses" and len(lost) < 2:
                lost.append(method)
                at.fake.lose()

        at.fake.before = lose
        first = respond(one, "hi")
        assert client.responses.retrieve(first.id).id == first.id
        assert two.server.openai.responses.retrieve(first.id).id == first.id
        assert lost


@pytest.fixture
def loras(tmp_path: Path) -> dict[str, Any]:
    for name in ("red", "blue", "broken"):
        (tmp_path / name).mkdir()
    return {"lora_dir": str(tmp_path)}


def adapters(server: OneServer) -> list[str]:
    return [each["id"] for each in get(server, "/lora?model=chat")["data"]]


def test_loras_are_there_at_all_servers_and_at_those_that_start_later(loras: Any) -> None:
    # SCALE-18
    with servers(server=loras) as at:
        one, two = at.all
        wanted = [{"name": "red", "scaling": 0.5}, {"name": "blue"}]
        assert post(one, "/lora/load", {"model": "chat", "loras": wanted})[0] == 200
        assert adapters(one) == adapters(two) == ["red", "blue"]
        assert two.adapters["red"][0].scaling == 0.5
        late = at.start()
        late.until(lambda: set(late.adapters) == {"red", "blue", "red+blue"})
        at.cluster.do(at.fake.lose)
        latest = at.start()
        latest.until(lambda: set(latest.adapters) == {"red", "blue", "red+blue"})
        assert post(late, "/lora/unload", {"model": "chat"})[0] == 200
        for server in at.all:
            assert adapters(server) == []
            assert server.adapters == {}


def test_loras_that_cannot_be_loaded_are_told_to_nobody(loras: Any) -> None:
    with servers(server=loras) as at:
        one, two = at.all
        body = {"model": "chat", "loras": [{"name": "broken"}, {"name": "red"}]}
        assert post(one, "/lora/load", body)[1]["failure"] == ["broken"]
        assert adapters(two) == ["red"]
        body["loras"] = [{"name": "broken"}]
        assert post(one, "/lora/load", body)[0] == 400
        assert adapters(one) == adapters(two) == ["red"]


def overrides(server: OneServer, model: str = "chat") -> Any:
    return get(server, f"/sampling/overrides?model={model}")["overrides"]


def test_overrides_hold_at_all_servers() -> None:
    with servers() as at:
        one, two = at.all
        cold = {"temperature": {"override": 0.25}}
        warm = {"temperature": {"override": 0.75}}
        assert post(one, "/sampling/override/switch", {"overrides": cold})[0] == 200
        assert overrides(two) == overrides(two, "here") == cold
        assert (
            post(two, "/sampling/override/switch", {"model": "chat", "overrides": warm})[0] == 200
        )
        late = at.start()
        late.until(lambda: late.server.app.state.services.models.find("chat").preset)
        for server in at.all:
            assert overrides(server) == warm
            assert overrides(server, "here") == cold
        assert post(late, "/sampling/override/unload")[0] == 200
        assert [overrides(server) for server in at.all] == [{}] * 3
        bad = {"overrides": {"temperature": {"override": "x"}}}
        assert post(one, "/sampling/override/switch", bad)[0] == 400
        assert [overrides(server) for server in at.all] == [{}] * 3


def test_a_template_holds_at_all_servers() -> None:
    with servers() as at:
        one, two = at.all
        name = next(n for n in get(one, "/templates?model=chat")["data"] if n == "chatml")
        assert post(one, "/template/switch", {"model": "chat", "name": name})[0] == 200

        def used(server: OneServer) -> Any:
            return server.server.app.state.services.models.find("chat").template

        assert used(two) == name
        late = at.start()
        late.until(lambda: used(late) == name)
        assert post(two, "/template/unload", {"model": "chat"})[0] == 200
        assert [used(server) for server in at.all] == [None] * 3


def test_usage_is_that_of_all_servers() -> None:
    with servers(keys=[ANN, ADMIN]) as at:
        one, two = at.all
        let_go(at, "ab", "abc")
        at.ask(one, "ab", headers=key("ann")).result()
        at.ask(two, "abc", headers=key("ann")).result()
        for server in at.all:
            server.server.settle()
            uses = server.server.app.state.services.key_uses
            uses.record()
            server.server.run(uses.records.write())
        for server in at.all:
            response = server.server.http.get("/v1/usage", headers=key("ann")).json()
            [used] = response["data"]
            assert (used["requests"], used["prompt_tokens"]) == (2, 5)


def events_of(lines: Iterator[str]) -> Iterator[Any]:
    return (json.loads(line[6:]) for line in lines if line.startswith("data: {"))


def test_a_lost_ledger_ends_no_answer_and_new_requests_wait_and_work() -> None:
    # SCALE-11
    with servers(max_running=2) as at:
        one, two = at.all
        body = {"model": "chat", "prompt": "a", "stream": True}
        with one.server.http.stream("POST", "/v1/completions", json=body) as response:
            events = events_of(response.iter_lines())
            assert next(events)["choices"][0]["text"] == "a"
            at.fake.settles = False
            at.cluster.do(at.fake.lose)
            second, third = at.ask(two, "b"), at.ask(two, "c")
            at.until(lambda: len([*at.fake.object()._members]) == 2)
            assert at.running() == ["a"]
            at.cluster.do(at.settle)
            at.until(lambda: len(at.running()) == 2)
            assert at.fake.object()._gates["chat"].running == 2
            two.queued(1)
            let_go(at, "a", "b", "c")
            assert "".join(each["choices"][0]["text"] for each in events) == "b"
        assert [each.result().status_code for each in (second, third)] == [200, 200]


def test_a_server_that_ends_gives_its_places_back() -> None:
    # SCALE-12
    with servers(max_running=1) as at:
        one, two = at.all
        first = at.ask(one, "a")
        at.until(lambda: at.running() == ["a"])
        second = at.ask(two, "b")
        two.queued(1)
        let_go(at, "a", "b")
        assert first.result().status_code == 200
        at.end(one)
        assert second.result().status_code == 200
        assert [each["front"].rpartition(":")[2] for each in requests(two)] == []
        members = list(at.fake.object()._members)
        assert [member.name.rpartition(":")[2] for member in members] == ["8002"]


def test_a_server_starts_without_its_cluster_and_says_what_it_lacks() -> None:
    # SCALE-19
    with servers(0) as at:
        at.fake.down = True
        one = at.start()
        front = one.server.app.state.services.peers.front
        front.ledger.patience = 0.0
        let_go(at, "a")
        health = one.server.http.get("/health")
        assert (health.status_code, health.json()["state"]) == (200, "degraded")
        assert "cannot be reached" in health.json()["issues"][0]["description"]
        assert one.server.http.get("/health/ready").status_code == 503
        refused = at.ask(one, "a").result()
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            503,
            "cluster_unavailable",
        )
        assert "enginebay cluster status" in refused.json()["error"]["message"]
        answered = at.ask(one, "a", model="here").result()
        assert answered.status_code == 200, "a model of this server needs nobody else"
        listed = one.server.http.get("/v1/requests").json()
        assert "start its head" in listed["problem"] or "connecting" in listed["problem"]
        front.ledger.patience = 60.0
        waiting = at.ask(one, "a")
        at.fake.down = False
        assert waiting.result().status_code == 200
        one.until(lambda: front.ledger.trouble is None)
        assert one.server.http.get("/health").json()["state"] == "ok"
        assert one.server.http.get("/health/ready").status_code == 200


def test_of_two_settings_the_later_one_holds_in_whatever_order_they_arrive() -> None:
    with servers() as at:
        one, two = at.all
        cold, warm = {"temperature": {"override": 0.25}}, {"temperature": {"override": 0.75}}
        of_all, of_chat = SettingKey("preset", None), SettingKey("preset", "chat")
        late = {of_all: Setting((1, "x"), (None, cold))}
        settings = two.server.app.state.services.peers.settings
        two.server.run(settings._learn({of_chat: Setting((2, "x"), (None, warm))}))
        two.server.run(settings._learn(late))
        assert (overrides(two), overrides(two, "here")) == (warm, cold)
        assert post(one, "/sampling/override/switch", {"overrides": {}})[0] == 200
        assert [overrides(server) for server in at.all] == [{}, {}]
