"""SEC-5: what users may do to models and to each other's requests, by the one list."""

from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any, get_args

import httpx2
import pytest

from enginebay.models.permissions import USERS, Action
from enginebay.server.access.key_store import KeyStore
from enginebay.server.services import services_of
from tests.api.test_folder_models import BODY, CHAT, served
from tests.api.test_queue import asking, keys_of
from tests.held import holding
from tests.support import Server

LOAD = {"name": "m", "stream": False}
ROUTES: dict[Action, list[tuple[str, str, dict[str, Any]]]] = {
    "load_model": [
        ("POST", "/v1/model/load", LOAD),
        ("POST", "/v1/models/m/load", {"stream": False}),
        ("POST", "/v1/models/a.toy/load", {"stream": False}),
        ("POST", "/v1/model/embedding/load", LOAD),
    ],
    "unload_model": [
        ("POST", "/v1/model/unload", {}),
        ("POST", "/v1/models/m/unload", {}),
        ("POST", "/v1/models/a.toy/unload", {"skip_queue": True}),
        ("POST", "/v1/model/embedding/unload", {}),
        ("POST", "/api/chat", {"model": "m", "keep_alive": 0}),
        ("POST", "/api/generate", {"model": "m", "keep_alive": "0s"}),
    ],
    "change_loras": [
        ("POST", "/v1/lora/load", {"loras": [{"name": "x"}]}),
        ("POST", "/v1/lora/unload", {}),
    ],
    "change_template": [
        ("POST", "/v1/template/switch", {"prompt_template_name": "chatml"}),
        ("POST", "/v1/template/unload", {}),
    ],
    "change_sampling": [
        ("POST", "/v1/sampling/override/switch", {"overrides": {"temperature": 0}}),
        ("POST", "/v1/sampling/override/unload", {}),
    ],
    "estimate_memory": [("GET", "/v1/models/m/memory", {})],
    "download_model": [
        ("POST", "/v1/download", {"repo_id": "a/b c"}),
        ("GET", "/v1/hub/search", {}),
        ("GET", "/v1/hub/files", {}),
    ],
}
"""Routes of each action that users may not do."""


def statuses(server: Server, key: str | None) -> dict[str, int]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    found = {}
    for sends in ROUTES.values():
        for method, path, body in sends:
            answer = server.http.request(method, path, json=body, headers=headers)
            found[f"{method} {path}"] = answer.status_code
    return found


@pytest.mark.wing("ollama")
def test_every_action_that_users_may_not_do_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toy").touch()
    assert set(get_args(Action)) == set(USERS)
    assert {action for action, reach in USERS.items() if reach == "none"} == {
        *ROUTES,
        "see_model_folder",
    }
    with served(tmp_path, {"name": "m"}, keys=keys_of("ann")) as server:
        assert set(statuses(server, "ann").values()) == {403}
        assert set(statuses(server, None).values()) == {401}
        models = services_of(server.app).models
        assert models.find("m").is_loaded
        assert not {401, 403} & set(statuses(server, "admin").values())
    with served(tmp_path, {"name": "m"}) as server:  # where nobody needs a key
        assert not {401, 403} & set(statuses(server, None).values())


class Users:
    """Requests of several keys to one server, and how long its models stay."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def asks(self, key: str, model: str, **fields: Any) -> httpx2.Response:
        answer = self._server.http.post(
            CHAT, json={**BODY, "model": model, **fields}, headers={"x-api-key": key}
        )
        assert answer.status_code == 200, answer.text
        self._server.settle()
        return answer

    def stays(self, model: str) -> float:
        return services_of(self._server.app).models.find(model).idle_timeout


@pytest.fixture
def users(tmp_path: Path) -> Iterator[Users]:
    for name in ("a.toy", "b.toy"):
        (tmp_path / name).touch()
    models = [{"name": "always"}, {"name": "hour", "idle_timeout": 3600}]
    with served(tmp_path, *models, keys=keys_of("ann", "bob")) as server:
        yield Users(server)


@pytest.mark.parametrize("field", ["keep_alive", "ttl"])
@pytest.mark.parametrize("sent", [0, "0s", 0.001, 5, "10m"])
def test_users_do_not_shorten_the_time_of_the_config(users: Users, field: str, sent: Any) -> None:
    users.asks("ann", "always", **{field: sent})
    users.asks("ann", "hour", **{field: sent})
    assert (users.stays("always"), users.stays("hour")) == (inf, 3600)


def test_users_do_not_shorten_the_time_of_each_other(users: Users) -> None:
    users.asks("ann", "hour", keep_alive="2h")
    users.asks("bob", "hour", keep_alive=0)
    assert users.stays("hour") == 7200
    users.asks("bob", "hour", keep_alive=-1)
    assert users.stays("hour") == inf
    users.asks("bob", "hour", ttl="90m")  # one's own time
    assert users.stays("hour") == 7200
    users.asks("ann", "hour", keep_alive=1)
    assert users.stays("hour") == 5400


def test_admins_say_how_long_a_model_stays(users: Users) -> None:
    users.asks("ann", "hour", keep_alive=-1)
    users.asks("admin", "hour", keep_alive=60)
    assert users.stays("hour") == 60
    users.asks("ann", "hour", keep_alive=1)
    assert users.stays("hour") == 60
    users.asks("ann", "hour", keep_alive=120)
    assert users.stays("hour") == 120


def test_the_only_user_of_a_folder_model_may_shorten_its_time(users: Users) -> None:
    users.asks("ann", "a.toy", keep_alive=5)
    assert users.stays("a.toy") == 5
    users.asks("bob", "a.toy")
    assert users.stays("a.toy") == 600
    users.asks("bob", "a.toy", keep_alive=3)
    assert users.stays("a.toy") == 600
    users.asks("bob", "a.toy", keep_alive=900)
    assert users.stays("a.toy") == 900


def test_it_is_unloaded_for_its_only_user(users: Users) -> None:
    users.asks("ann", "a.toy", keep_alive=0)
    users.asks("ann", "always")
    assert services_of(users._server.app).models.find("a.toy").state == "unloaded"


def test_a_folder_model_that_an_admin_has_loaded(users: Users) -> None:
    load = users._server.http.post(
        "/v1/models/a.toy/load", json={"stream": False}, headers={"x-api-key": "admin"}
    )
    assert load.status_code == 200
    users.asks("ann", "a.toy", keep_alive=0)
    assert users.stays("a.toy") == 600


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "x"}], "stream": False}),
        ("/api/generate", {"prompt": "x", "stream": False}),
        ("/api/generate", {}),
        ("/api/chat", {}),
        ("/api/embed", {"input": []}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", BODY),
    ],
)
def test_by_every_api(users: Users, path: str, body: dict[str, Any]) -> None:
    sent = {"model": "always", "keep_alive": "1ms", **body}
    users._server.http.post(path, json=sent, headers={"x-api-key": "ann"})
    assert users.stays("always") == inf


def test_a_key_stops_only_its_own_requests() -> None:
    keys: KeyStore = keys_of("ann", "bob")
    with holding(keys=keys, server={"auth": "required"}) as at, asking(at) as ask:
        answer = ask("x", key="ann", stream=True)
        at.begun("x")
        [running] = at.requests
        for action in ("cancel", "end_reasoning"):
            for id in (running.id, running.answer_id):
                path = f"/v1/requests/{id}/{action}"
                refused = at.server.http.post(path, headers={"x-api-key": "bob"})
                assert refused.status_code == 404
                assert refused.json()["error"]["code"] == "request_not_found"
        assert not running.cancelled
        listed = at.server.http.get("/v1/requests", headers={"x-api-key": "bob"}).json()
        assert listed["data"] == []
        at.let_go("x")
        assert answer.result().text.endswith("[DONE]\n\n")
