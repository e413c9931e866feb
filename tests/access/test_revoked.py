"""A key that is removed, rotated or may do less ends its running streams. Issue 19, item 5"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from enginebay.config.keys import Key
from enginebay.config.schema import Config
from enginebay.server.access import keys_file, revoked
from enginebay.server.access.key_store import KeyStore, fixed_keys
from enginebay.server.access.keys import hash_of
from tests.held import Holding, holding

TEXT = "/v1/completions"


@dataclass
class Place:
    """A server with a keys file, in which the key of NAME is `key-of-NAME`."""

    at: Holding
    keys: KeyStore
    file: Path

    def looked(self) -> None:
        """What the server does every second."""
        services = self.at.server.app.state.services

        async def look() -> None:
            requests, models = services.serving.requests, services.models
            await self.keys.look()
            revoked.cancel_revoked(self.keys.known(), requests, models)

        self.at.server.run(look())

    @contextmanager
    def stream(self, key: str, path: str = TEXT, **body: Any) -> Iterator[Iterator[str]]:
        """The lines of a stream that has begun."""
        headers = {"x-api-key": f"key-of-{key}"}
        body = {"stream": True, **({"prompt": key} if path == TEXT else {}), **body}
        with self.at.server.http.stream("POST", path, json=body, headers=headers) as answer:
            lines = (line for line in answer.iter_lines() if line)
            assert next(lines)
            yield lines


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    file = tmp_path / "keys.yml"
    names = ("anna", "bob", "carl")
    keys_file.create(file, [keys_file.new_entry(name, f"key-of-{name}") for name in names])
    keys = KeyStore(file)
    with holding(keys=keys, max_running=10, likes=["other"], server={"auth": "required"}) as at:
        yield Place(at, keys, file)


def test_removed_and_rotated(place: Place) -> None:
    with ExitStack() as stack:
        streams = {
            name: stack.enter_context(place.stream(name)) for name in ("anna", "bob", "carl")
        }
        keys_file.remove(place.file, "anna")
        keys_file.set_hash(place.file, {"bob": hash_of("another key")})
        place.looked()
        for name in ("anna", "bob"):
            *_, error, done = streams[name]
            assert done == "data: [DONE]"
            assert json.loads(error.removeprefix("data: "))["error"] == {
                "message": f"the API key of {name} is not valid any more",
                "type": "authentication_error",
                "param": None,
                "code": "invalid_api_key",
            }
        place.at.until(lambda: place.at.held.running == ["carl"])
        place.at.let_go("carl")
        *_, finish, done = streams["carl"]
        assert '"finish_reason":"stop"' in finish.replace(" ", "")


def test_the_server_looks_by_itself(place: Place) -> None:
    """Nobody sends a request, and a stream says nothing; it takes a second, or two."""
    with place.stream("anna") as lines:
        keys_file.remove(place.file, "anna")
        assert any("not valid any more" in line for line in lines)


@pytest.mark.wing("messages", "ollama", "responses")
@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        ("/v1/chat/completions", {}, "data: [DONE]"),
        ("/v1/messages", {"max_tokens": 9}, "authentication_error"),
        ("/v1/responses", {"messages": None, "input": "anna"}, "response.failed"),
        ("/api/chat", {}, "not valid any more"),
    ],
)
def test_every_api_says_why(place: Place, path: str, body: dict[str, Any], last: str) -> None:
    chat = {"model": "scripted", "messages": [{"role": "user", "content": "anna"}], **body}
    chat = {name: value for name, value in chat.items() if value is not None}
    with place.stream("anna", path, **chat) as lines:
        keys_file.remove(place.file, "anna")
        place.looked()
        rest = [*lines]
    assert "the API key of anna is not valid any more" in " ".join(rest)
    assert last in " ".join(rest[-2:])
    place.at.until(lambda: not place.at.held.running)


def test_whole_answers_and_those_that_wait(place: Place) -> None:
    def ask(prompt: str) -> httpx2.Response:
        headers = {"x-api-key": "key-of-anna"}
        body = {"prompt": prompt}
        return httpx2.post(f"{place.at.server.url}{TEXT}", json=body, headers=headers, timeout=60)

    with ThreadPoolExecutor(12) as threads:
        answers = [threads.submit(ask, str(number)) for number in range(12)]
        place.at.queued(3)  # one slot is kept for other keys
        keys_file.remove(place.file, "anna")
        place.looked()
        for answer in answers:
            response = answer.result()
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
    place.at.until(lambda: not (place.at.requests or place.at.gate.running))


def test_a_model_that_a_key_may_not_use_any_more(place: Place) -> None:
    with (
        place.stream("anna", model="scripted") as ended,
        place.stream("anna", model="other", prompt="2") as stays,
    ):
        text = place.file.read_text("utf-8").replace(
            "name: anna", "name: anna\n    models: [other]"
        )
        place.file.write_text(text, "utf-8")
        place.looked()
        assert "the API key of anna may not use scripted any more" in " ".join(ended)
        place.at.let_go("2")
        assert any('"finish_reason":"stop"' in line.replace(" ", "") for line in stays)


def test_changes_that_end_nothing(place: Place) -> None:
    """A new name or role, other limits, a broken file, no file."""
    with place.stream("anna") as lines:
        good = place.file.read_text("utf-8")
        for text in (
            good.replace("name: anna", "name: ann"),
            good.replace("name: anna", "name: anna\n    tokens_per_day: 1"),
            good.replace("name: anna", "name: anna\n    models: [scripted]"),
            "keys: 3",
            good,
        ):
            place.file.write_text(text, "utf-8")
            place.looked()
        place.file.unlink()
        place.looked()
        place.at.let_go("anna")
        assert any('"finish_reason":"stop"' in line.replace(" ", "") for line in lines)


async def test_keys_of_the_config_change_too(tmp_path: Path) -> None:
    def fixed(*keys: str) -> list[Key]:
        return fixed_keys(Config.model_validate({"server": {"api_keys": keys}}))

    file = tmp_path / "keys.yml"
    keys_file.create(file, [keys_file.new_entry("anna", "a")])
    keys = KeyStore(file, fixed("1", "2"))
    one, two, _ = keys.known()
    assert one.name != two.name
    keys.fix(fixed("2", "3"))  # one in another place keeps its name, and what belongs to that
    assert keys.known()[0] == two
    assert keys.known()[1].name not in (one.name, two.name)
    assert keys.known()[2].name == "anna"
