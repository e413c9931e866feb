"""Keys, limits, hosts and origins, from outside."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from fastapi import Depends
from openai import OpenAI

from enginebay import Backend, BackendUnavailableError
from enginebay.config.schema import Config
from enginebay.contract.backend_settings import BackendSettings
from enginebay.plugins import Plugins
from enginebay.server.access import keys_file
from enginebay.server.access.auth import require_admin
from enginebay.server.access.key_store import KeyStore
from tests.support import Server, plugins_with, scripted, serve

USER: Any = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
MODELS = [{"name": name, "backend": "scripted", "path": "."} for name in ("big", "small")]
PUBLIC = {
    "/",
    "/health",
    "/v1/health",
    "/health/live",
    "/health/ready",
    "/livez",
    "/readyz",
    "/v1/livez",
    "/v1/readyz",
    "/v1/health/live",
    "/v1/health/ready",
    "/.well-known/serviceinfo",
    "/docs",
    "/openapi.json",
}


@dataclass
class Place:
    """A server with a keys file; the key of NAME is `key-of-NAME`."""

    server: Server
    file: Path
    keys: KeyStore

    def looked(self) -> None:
        """Do what the server does every second."""
        self.server.run(self.keys.look())

    def client(self, name: str) -> OpenAI:
        return self.server.openai.with_options(api_key=f"key-of-{name}")

    def say(self, name: str, **params: Any) -> Any:
        params = {"model": "big", "messages": USER, **params}
        return self.client(name).chat.completions.with_raw_response.create(**params)

    def get(self, path: str, **headers: str) -> Any:
        return self.server.http.get(
            path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )


Start = Callable[..., Place]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start({"anna": {"max_tokens": 5}}, auth="required")`; `root` is an admin."""
    with ExitStack() as stack:

        def begin(keys: dict[str, dict[str, Any]], script: Any = ("ok",), **server: Any) -> Place:
            file = tmp_path / "keys.yml"
            entries = [
                keys_file.new_entry(name, f"key-of-{name}", **limits)
                for name, limits in {**keys, "root": {"role": "admin"}}.items()
            ]
            keys_file.create(file, entries)
            settings = {"keys_file": str(file), "auth": "required", **server}
            config = Config.model_validate({"models": MODELS, "server": settings})
            plugins = plugins_with(scripted=scripted(script))
            keys = KeyStore(file)
            return Place(stack.enter_context(serve(config, plugins, keys=keys)), file, keys)

        yield begin


def test_keys_are_needed(start: Start) -> None:
    place = start({"anna": {}})
    assert place.say("anna").status_code == 200
    assert place.say("root").status_code == 200
    with pytest.raises(openai.AuthenticationError) as caught:
        place.say("nobody")
    assert caught.value.code == "invalid_api_key"
    assert caught.value.response.headers["www-authenticate"] == "Bearer"
    assert "not valid" in caught.value.message
    answer = place.get("/v1/models")
    assert answer.status_code == 401
    assert "no API key was sent" in answer.json()["error"]["message"]
    for headers in (
        {"authorization": "Bearer key-of-anna"},
        {"x_api_key": "key-of-anna"},
        {"x_admin_key": "key-of-root"},
        {"x_api_key": "wrong", "authorization": "Bearer key-of-anna"},
        {"x_api_key": "key-of-anna", "x_admin_key": "wrong"},
    ):
        assert place.get("/models", **headers).status_code == 200, headers


def add_secret(server: Server) -> None:
    """A route for admins."""
    server.app.add_api_route(
        "/v1/secret", lambda: {}, methods=["POST"], dependencies=[Depends(require_admin)]
    )


def test_admin_routes() -> None:
    """Whoever needs a key or not: who gets to a route for admins."""
    statuses = {}
    for auth in ("required", "admin", "none"):
        config = Config.model_validate({"server": {"auth": auth, "api_keys": ["user-key"]}})
        with serve(config, Plugins()) as server:
            add_secret(server)
            keys: list[dict[str, str]] = [{}, {"x-api-key": "wrong"}, {"x-api-key": "user-key"}]
            statuses[auth] = [
                server.http.post("/v1/secret", headers=headers).status_code for headers in keys
            ]
            if auth == "admin":
                refused = server.http.post("/v1/secret", headers=keys[-1]).json()["error"]
                assert (refused["type"], refused["code"]) == (
                    "permission_error",
                    "permission_denied",
                )
    assert statuses == {
        "required": [401, 401, 403],
        "admin": [401, 401, 403],
        "none": [200, 200, 200],
    }


def test_an_admin_key_opens_admin_routes(tmp_path: Path) -> None:
    file = tmp_path / "keys.yml"
    keys_file.create(file, [keys_file.new_entry("root", "key-of-root", "admin")])
    config = Config.model_validate({"server": {"keys_file": str(file), "auth": "admin"}})
    with serve(config, Plugins()) as server:
        add_secret(server)
        for name, value in (
            ("x-admin-key", "key-of-root"),
            ("x-api-key", "key-of-root"),
            ("authorization", "Bearer key-of-root"),
        ):
            assert server.http.post("/v1/secret", headers={name: value}).status_code == 200


@pytest.mark.wing("page")
def test_every_route_needs_a_key_but_a_few() -> None:
    """Those that exist, and those that do not: what is there is not to be found out without one."""
    config = Config.model_validate({"server": {"api_keys": ["one"]}})
    with serve(config, Plugins()) as server:
        documented = set(server.app.openapi()["paths"])
        paths = PUBLIC | documented | {path.removeprefix("/v1") for path in documented}
        assert {CHAT, "/chat/completions", "/v1/models/{model_id}", "/metrics"} <= paths
        for path in paths | {"/nothing", "/v1", "/health-not", "/HEALTH", "/v1/docs"}:
            asked = path.replace("{model_id}", "x")
            status = {m: server.http.request(m, asked).status_code for m in ("GET", "POST")}
            if path in PUBLIC:
                assert 401 not in status.values(), path
            else:
                assert set(status.values()) == {401}, path


def test_a_request_without_a_key_is_refused_before_its_body(start: Start) -> None:
    place = start({})

    port = int(place.server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n{{".encode()
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("auth", ["auto", "admin"])
@pytest.mark.parametrize("key", ["none", "sk-no-key-required", "eb-wrong", "key-of-root", ""])
def test_without_keys_for_users_any_will_do(start: Start, key: str, auth: str) -> None:
    # MLC-31
    place = start({}, auth=auth)
    for header in ({"x_api_key": key}, {"authorization": f"Bearer {key}".strip()}):
        assert place.get("/v1/models", **header).status_code == 200
    body = {"messages": USER}
    assert place.server.http.post(CHAT, json=body, headers={"x-api-key": key}).status_code == 200


@pytest.mark.parametrize("auth", ["auto", "admin", "required"])
def test_a_wrong_key_is_refused_where_none_is_needed_too(start: Start, auth: str) -> None:
    # EVE-1
    place = start({"anna": {"requests_per_minute": 1}}, auth=auth)
    post, body = place.server.http.post, {"messages": USER, "model": "big"}
    statuses = [
        post(CHAT, json=body, headers=headers).status_code
        for headers in (
            {},
            {"authorization": "Bearer"},
            {"x-api-key": "none"},
            {"authorization": "Bearer key-of-ann"},
            {"x-admin-key": "key-of-anna2"},
            {"authorization": "Bearer wrong", "x-api-key": "key-of-anna"},
            {"x-api-key": "key-of-anna"},
        )
    ]
    unneeded = 401 if auth == "required" else 200
    assert statuses == [unneeded, unneeded, 401, 401, 401, 200, 429]
    for path in ("/v1/messages", "/v1/responses", "/api/chat", "/infill", "/v1/nothing"):
        refused = post(path, json={}, headers={"x-api-key": "wrong"})
        assert refused.status_code == 401
        assert "this API key is not valid" in refused.text
    assert place.get("/health", x_api_key="wrong").status_code == 200, "it is for those without"
    keys_file.remove(place.file, "anna")
    place.looked()
    wrong = post(CHAT, json=body, headers={"x-api-key": "none"}).status_code
    assert wrong == unneeded, "there is no key for users any more"


def test_requests_per_minute(start: Start) -> None:
    place = start({"anna": {"requests_per_minute": 2}, "bob": {}})
    first = place.say("anna")
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-reset-requests"].endswith("s")
    assert place.say("anna", stream=True).headers["x-ratelimit-remaining-requests"] == "0"
    with pytest.raises(openai.RateLimitError) as caught:
        place.say("anna")
    assert caught.value.code == "rate_limit_exceeded"
    assert caught.value.type == "requests"
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
    assert caught.value.response.headers["x-ratelimit-remaining-requests"] == "0"
    assert [m.id for m in place.client("anna").models.list()] == ["big", "small"], "looking is free"
    assert "x-ratelimit-limit-requests" not in place.say("bob").headers


def test_concurrent_requests(start: Start) -> None:
    """A request counts until its response has ended, however that happens."""
    go_on = threading.Event()

    def script(prompt: str, index: int) -> Iterator[str]:
        yield "a"
        go_on.wait(60)
        yield "b"

    place = start({"anna": {"concurrent_requests": 1}, "bob": {}}, script)
    stream = place.client("anna").chat.completions.create(model="big", messages=USER, stream=True)
    next(iter(stream))
    with pytest.raises(openai.RateLimitError, match="limited to 1 at once") as caught:
        place.say("anna")
    assert caught.value.response.headers["retry-after"] == "1"
    go_on.set()
    assert place.say("bob").status_code == 200
    for _ in stream:
        pass
    assert place.say("anna").status_code == 200
    with pytest.raises(openai.BadRequestError):
        place.say("anna", n=0)
    assert place.say("anna").status_code == 200, "errors end, too"


def test_models_of_a_key(start: Start) -> None:
    place = start({"anna": {"models": ["small"]}, "bob": {}})
    anna = place.client("anna")
    assert [model.id for model in anna.models.list()] == ["small"]
    assert [model.id for model in place.client("bob").models.list()] == ["big", "small"]
    assert place.say("anna", model="small").status_code == 200
    for path in (
        *("/v1/model/list", "/v1/model/draft/list", "/v1/model", "/v1/models?model=big"),
        *("/v1/stats", "/v1/props"),
    ):
        shown = place.get(path, x_api_key="key-of-anna").text
        assert "small" in shown, path
        assert "big" not in shown, path
    for ask in (
        lambda: place.say("anna"),
        lambda: place.say("anna", model="none"),
        lambda: anna.models.retrieve("big"),
        lambda: anna.completions.create(model="big", prompt="x"),
        lambda: anna.embeddings.create(model="big", input="x"),
        lambda: explain(anna),
        lambda: anna.post("/token/encode", body={"text": "x", "model": "big"}, cast_to=object),
        lambda: anna.get("/props?model=big", cast_to=object),
        lambda: anna.get("/sampling/overrides?model=big", cast_to=object),
        lambda: anna.get("/sampling/overrides?model=none", cast_to=object),
        lambda: anna.get("/lora?model=big", cast_to=object),
        lambda: anna.get("/models/big/inspect", cast_to=object),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            ask()
        assert "big" not in caught.value.message.replace("'big'", ""), "it is said to be unknown"
    for unnamed in ({}, {"model": None}, {"model": ""}):
        answer = place.server.http.post(
            CHAT, json={"messages": USER, **unnamed}, headers={"x-api-key": "key-of-anna"}
        )
        assert answer.json()["model"] == "small", "the first that it may use"


def test_embedding_models_of_a_key(tmp_path: Path) -> None:
    """What a model makes is not known until it is loaded."""
    file = tmp_path / "keys.yml"
    keys_file.create(file, [keys_file.new_entry("anna", "key-of-anna", models=["small"])])
    models = [{**model, "load": "command"} for model in MODELS]
    settings = {"keys_file": str(file), "auth": "required"}
    config = Config.model_validate({"models": models, "server": settings})
    with serve(config, plugins_with(scripted=scripted(["ok"]))) as server:
        answer = server.http.get("/v1/model/embedding/list", headers={"x-api-key": "key-of-anna"})
        assert [card["id"] for card in answer.json()["data"]] == ["small"]


@pytest.mark.parametrize("auth", ["required", "admin"])
def test_models_are_named_to_those_who_may_use_them(tmp_path: Path, auth: str) -> None:
    """In what needs no key, or any, too."""
    file = tmp_path / "keys.yml"
    some = {**keys_file.new_entry("anna", "key-of-anna"), "models": ["mine"]}
    every = keys_file.new_entry("bob", "key-of-bob")
    admin = keys_file.new_entry("root", "key-of-root", "admin")
    keys_file.create(file, [some, every, admin])
    models = [{"name": name, "backend": "scripted", "path": "."} for name in ("mine", "secret")]
    settings = {"keys_file": str(file), "auth": auth, "metrics": "keyed"}
    config = Config.model_validate({"models": models, "server": settings})
    with serve(config, plugins_with(scripted=scripted(["ok"]))) as server:
        named = {"": [], "anna": ["mine"], "bob": ["mine", "secret"], "root": ["mine", "secret"]}
        if auth == "admin":
            named[""] = ["mine", "secret"]
        for name, expected in named.items():
            headers = {"x-api-key": f"key-of-{name}"} if name else {}
            for path in ("/health", "/v1/health/live", "/readyz"):
                health = server.http.get(path, headers=headers).json()
                assert list(health["models"]) == expected
                assert (health["status"], health["state"]) == ("healthy", "ok")
            metrics = server.http.get("/metrics", headers=headers)
            assert metrics.status_code == {"": 401, "anna": 403}.get(name, 200)
            assert ("secret" in metrics.text) == (metrics.status_code == 200)


def test_issues_do_not_name_models_of_others(tmp_path: Path) -> None:
    file = tmp_path / "keys.yml"
    some = {**keys_file.new_entry("anna", "key-of-anna"), "models": ["mine"]}
    keys_file.create(file, [some, keys_file.new_entry("bob", "key-of-bob")])

    def missing(settings: BackendSettings) -> Backend:
        raise BackendUnavailableError("it has no config.json")

    models = [
        {"name": "mine", "backend": "scripted", "path": "."},
        {"name": "secret", "backend": "missing", "path": "."},
    ]
    settings = {"keys_file": str(file), "auth": "required"}
    config = Config.model_validate({"models": models, "server": settings})
    with serve(config, plugins_with(scripted=scripted(["ok"]), missing=missing)) as server:
        for name in ("", "anna"):
            headers = {"x-api-key": f"key-of-{name}"}
            health = server.http.get("/health", headers=headers).json()
            assert "secret" not in str(health)
            [issue] = health["issues"]
            assert issue["description"].startswith("a model could not be loaded; ")
        [issue] = server.http.get("/health", headers={"x-api-key": "key-of-bob"}).json()["issues"]
        assert issue["description"].startswith("secret: ")


@pytest.mark.parametrize("auth", ["required", "admin"])
def test_files_of_the_machine_are_shown_to_admins_only(tmp_path: Path, auth: str) -> None:
    """Or to all, where nobody is kept out."""
    file, secret = tmp_path / "keys.yml", "/home/me/s3cret/model"
    user = keys_file.new_entry("anna", "key-of-anna")
    keys_file.create(file, [user, keys_file.new_entry("root", "key-of-root", "admin")])

    def missing(settings: BackendSettings) -> Backend:
        raise BackendUnavailableError(f"{settings.path} has no config.json")

    models = [{"name": "gone", "backend": "missing", "path": secret}]
    settings = {"keys_file": str(file), "auth": auth}
    config = Config.model_validate({"models": models, "server": settings})
    paths = (
        "/health",
        "/health/live",
        "/v1/models",
        "/v1/models/gone",
        "/v1/model/list",
        "/v1/stats",
    )
    with serve(config, plugins_with(missing=missing)) as server:
        for key in ("", "key-of-anna", "key-of-root"):
            headers = {"x-api-key": key} if key else {}
            answers = [server.http.get(path, headers=headers) for path in paths]
            body = {"messages": USER, "model": "gone"}
            answers.append(server.http.post(CHAT, json=body, headers=headers))
            known = [answer for answer in answers if answer.status_code != 401]
            assert len(known) == (2 if auth == "required" and not key else len(answers))
            told = auth == "admin" or key == "key-of-root"
            for answer in known:
                assert (secret in answer.text) is told, answer.text
                assert ("could not be loaded" in answer.text) is not told, answer.text
                assert "s3cret" not in str(answer.headers)
        assert answers[-1].status_code == 503


@pytest.mark.parametrize(("auth", "permissions"), [("required", ["api", "admin"]), ("none", None)])
def test_permission(start: Start, auth: str, permissions: list[str] | None) -> None:
    place = start({"anna": {}}, auth=auth)
    answers = [
        place.get("/v1/auth/permission", x_api_key=f"key-of-{name}").json()["permission"]
        for name in ("anna", "root")
    ]
    assert answers == (permissions or ["admin", "admin"])


def test_max_tokens_of_a_key(start: Start) -> None:
    endless = lambda prompt, index: iter(lambda: "a", "")  # noqa: E731
    place = start({"anna": {"max_tokens": 4}, "bob": {}}, endless)
    for asked, header in ((None, None), (3, None), (9, "max_tokens=4")):
        params = {} if asked is None else {"max_tokens": asked}
        raw = place.say("anna", **params)
        answer = raw.parse()
        assert answer.usage.completion_tokens == min(asked or 4, 4)
        assert answer.choices[0].finish_reason == "length"
        assert raw.headers.get("x-clamped-params") == header
        text = place.client("anna").completions.create(model="big", prompt="x", **params)
        assert text.usage
        assert text.usage.completion_tokens == ((asked and min(asked, 4)) or 4)
    assert place.say("bob", max_tokens=9).parse().usage.completion_tokens == 9


def test_keys_are_reloaded(start: Start) -> None:
    place = start({"anna": {}})
    assert place.say("anna").status_code == 200
    keys_file.add(place.file, keys_file.new_entry("new", "key-of-new"))
    keys_file.remove(place.file, "anna")
    place.looked()
    assert place.say("new").status_code == 200
    with pytest.raises(openai.AuthenticationError):
        place.say("anna")
    place.file.write_text("keys: [", encoding="utf-8")
    place.looked()
    assert place.say("new").status_code == 200


def test_other_sites_pages_and_names(start: Start) -> None:
    """Kept out where no key is needed; a key opens the door."""
    place = start({"anna": {}}, auth="admin", allowed_hosts=["llm.example"])
    post = place.server.http.post
    body = {"messages": USER}
    assert post(CHAT, json=body).status_code == 200
    refused = post(CHAT, json=body, headers={"Origin": "https://evil.example"})
    assert refused.status_code == 403
    assert "server.cors_origins" in refused.json()["error"]["message"]
    refused = post(CHAT, json=body, headers={"Host": "evil.example:5000"})
    assert refused.status_code == 403
    assert "server.allowed_hosts" in refused.json()["error"]["message"]
    for headers in (
        {"Host": "llm.example", "Origin": "https://llm.example"},
        {"Host": "evil.example", "Origin": "http://x.example", "x-api-key": "key-of-anna"},
    ):
        assert post(CHAT, json=body, headers=headers).status_code == 200


def test_cors_and_keys(start: Start) -> None:
    """A page that may call gets to read refusals, too; browsers ask without a key."""
    place = start({}, cors_origins=["https://ui.example"])
    answer = place.get("/v1/models", origin="https://ui.example")
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == "https://ui.example"
    asked = place.server.http.options(
        CHAT,
        headers={
            "Origin": "https://ui.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, x-admin-key",
        },
    )
    assert asked.status_code == 200
    assert "authorization" in asked.headers["access-control-allow-headers"]


def explain(client: OpenAI) -> object:
    body = {"messages": USER, "model": "big"}
    return client.post("/chat/completions/explain", body=body, cast_to=object)


@pytest.mark.parametrize("setting", ["on", "keyed"])
@pytest.mark.parametrize("auth", ["required", "auto", "admin", "none"])
def test_metrics_need_the_key_that_every_route_needs(start: Start, auth: str, setting: str) -> None:
    """SEC-6: also behind a proxy that leaves no marks."""
    place = start({"anna": {}, "bob": {"models": ["small"]}}, auth=auth, metrics=setting)
    path = "/metrics"
    statuses = {
        key: place.get(path, x_api_key=key).status_code
        for key in ("", "wrong", "key-of-anna", "key-of-bob", "key-of-root")
    }
    assert place.get("/v1/metrics").status_code == statuses[""]
    statuses["proxy"] = place.get(path, x_forwarded_for="192.0.2.1").status_code
    kept_out = auth == "required" or (setting == "keyed" and auth != "none")
    through_proxy = kept_out or auth == "auto"
    assert statuses == {
        "": 401 if kept_out else 200,
        "wrong": 200 if auth == "none" else 401,
        "key-of-anna": 200,
        "key-of-bob": 200 if auth == "none" else 403,
        "key-of-root": 200,
        "proxy": 401 if through_proxy else 200,
    }


NEEDS_NO_KEY = ("/", "/health", "/v1/health/live", "/readyz", "/docs", "/openapi.json")
FOREIGN = ("evil.example", "evil.local:5000", "wpad", "a.internal", "b.home.arpa", "c.localhost")


@pytest.mark.wing("page")
@pytest.mark.parametrize("path", [*NEEDS_NO_KEY, "/metrics", "/v1/models", "/nothing"])
def test_names_on_every_path_where_no_key_is_needed(start: Start, path: str) -> None:
    """SEC-8: health, metrics and the page, too."""
    place = start({"anna": {}}, auth="auto")
    found = 404 if path == "/nothing" else 200
    for host in (*FOREIGN, "localhost:5000", "[::1]:5000", "127.0.0.1"):
        answer = place.get(path, host=host)
        assert answer.status_code == (403 if host in FOREIGN else found), host
        if host in FOREIGN:
            assert "server.allowed_hosts" in answer.json()["error"]["message"]
        assert place.get(path, host=host, x_api_key="key-of-anna").status_code == found


@pytest.mark.wing("page")
def test_pages_under_any_name_where_keys_are_needed(start: Start) -> None:
    """A proxy has them under a name that the server does not know."""
    place = start({"anna": {}})
    for path in NEEDS_NO_KEY:
        assert place.get(path, host="llm.example").status_code == 200
    assert place.get("/metrics", host="llm.example").status_code == 401


PROGRAMS = (
    *("app://obsidian.md", "tauri://localhost", "vscode-webview://0a1b2c", "app://."),
    *("chrome-extension://abcdef", "moz-extension://0a-1b", "safari-web-extension://X"),
    *("capacitor://localhost", "ionic://localhost", "vscode-file://vscode-app"),
)
PAGES = (
    *("https://evil.example", "http://localhost:8000", "null", "file://", "file:///tmp/x.html"),
    *("HTTPS://evil.example", "http://tauri.localhost", "app://", "app:x", "://x", "x", ""),
)


@pytest.mark.parametrize("auth", ["auto", "required"])
@pytest.mark.parametrize("origins", [[], ["https://ui.example"]], ids=str)
def test_programs_may_call_and_read_answers(start: Start, auth: str, origins: list[str]) -> None:
    """WIRE-1: without a setting; pages of others may not."""
    place = start({"anna": {}}, auth=auth, cors_origins=origins)
    http, key = place.server.http, {"x-api-key": "key-of-anna"}
    for origin in (*PROGRAMS, *PAGES):
        asks = {
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type",
            "Access-Control-Request-Private-Network": "true",
        }
        may = origin in PROGRAMS
        for path in (CHAT, "/v1/messages", "/api/chat", "/v1/nothing"):
            asked = http.options(path, headers=asks)
            assert asked.headers.get("access-control-allow-origin") == (origin if may else None)
            assert (asked.status_code == 200) is may, origin
            if may:
                assert "authorization" in asked.headers["access-control-allow-headers"]
                assert "POST" in asked.headers["access-control-allow-methods"]
        for more, refused in (({}, auth == "required"), (key, False), ({"x-api-key": "x"}, True)):
            answer = http.post(CHAT, json={"messages": USER}, headers={"Origin": origin, **more})
            assert answer.headers.get("access-control-allow-origin") == (origin if may else None)
            stranger = not more and not may and bool(origin)
            assert answer.status_code == (401 if refused else 403 if stranger else 200), origin
        cross = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
        status = http.get("/v1/models", headers=cross).status_code
        assert status == (401 if auth == "required" else 200 if may else 403), origin
