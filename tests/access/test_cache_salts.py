"""SEC-7: what is cached for one key is not used for another, unless the config wants that."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import GenerationRequest
from enginebay.config.keys import Key
from enginebay.config.schema import Config
from enginebay.contract.media import Media
from enginebay.engine.batching.runner import RunnerMemory
from enginebay.server.access.keys import digest_of
from enginebay.testing import ScriptedEngine
from tests.api.test_media import image, says
from tests.api.test_queue import keys_of
from tests.batching.model import CONTEXT, Numbers, make_engine
from tests.support import Server, engine_backend, plugins_with, scripted_config, serve

LONG = list(range(2, 42))
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
GENERATE = {"prompt": "hi", "max_tokens": 1}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": GENERATE,
    "/v1/messages": {**CHAT, "max_tokens": 9},
    "/v1/responses": {"input": "hi"},
    "/completions": GENERATE,
    "/api/chat": CHAT,
    "/api/generate": {"prompt": "hi"},
    "/api/v1/generate": {"prompt": "hi"},
    "/api/extra/generate/stream": {"prompt": "hi"},
}
"""Every API that generates."""


class Telling(ScriptedEngine):
    """Keeps the requests that it gets."""

    def __init__(self) -> None:
        super().__init__(["ok"], media=["image"])
        self.got: list[GenerationRequest] = []

    def add_request(self, request: GenerationRequest) -> None:
        self.got.append(request)
        super().add_request(request)


def headers(key: str | None) -> dict[str, str]:
    return {"x-api-key": key} if key else {}


@pytest.fixture(scope="module")
def telling() -> Iterator[tuple[Server, Telling]]:
    """A server of ann, bob and an admin, on which nobody needs a key."""
    engine = Telling()
    plugins = plugins_with(scripted=engine_backend(lambda: engine))
    config = scripted_config(server={"auth": "admin"})
    with serve(config, plugins, keys=keys_of("ann", "bob")) as server:
        yield server, engine


def salt_of(
    telling: tuple[Server, Telling], key: str | None, path: str, body: dict[str, Any]
) -> str | None:
    server, engine = telling
    engine.got.clear()
    answer = server.http.post(path, json={"model": "scripted", **body}, headers=headers(key))
    assert answer.status_code == 200, answer.text
    [request] = engine.got
    return request.cache_salt


@pytest.mark.wing("kobold", "messages", "ollama", "responses")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
def test_every_api_uses_the_salt_of_the_key(
    telling: tuple[Server, Telling], path: str, stream: bool
) -> None:
    body = {**ROUTES[path], "stream": stream}
    salts = {key: salt_of(telling, key, path, body) for key in ("ann", "bob", "admin", None)}
    assert salts[None] is None, "everybody without a key is one"
    assert len(set(salts.values())) == 4
    for key, salt in salts.items():
        assert salt == salt_of(telling, key, "/v1/completions", GENERATE), "in all APIs the same"
        assert key is None or digest_of(key).hex()[:32] != salt, "the key's hash is not told"


def test_the_salt_of_a_client_counts_as_well(telling: tuple[Server, Telling]) -> None:
    path = "/v1/completions"

    def salt(key: str | None, asked: str | None) -> str | None:
        return salt_of(telling, key, path, {**GENERATE, "cache_salt": asked})

    asked = [None, "", "a", "b", salt("ann", None), f"{salt('ann', None)}a"]
    salts = [salt(key, each) for key in ("ann", "bob") for each in asked]
    assert len(set(salts)) == len(salts)
    assert salts == [salt(key, each) for key in ("ann", "bob") for each in asked]
    assert [salt(None, each) for each in asked] == asked, "without a key it is what was asked for"


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.none() | st.text(st.characters())),
        unique=True,
        max_size=9,
    )
)
def test_other_salts_for_other_keys_and_wishes(pairs: list[tuple[str, str | None]]) -> None:
    salts = [Key(name, digest_of(name)).cache_salt(asked) for name, asked in pairs]
    assert len(set(salts)) == len(pairs)


def test_pictures_are_cached_by_key(telling: tuple[Server, Telling]) -> None:
    server, engine = telling
    bodies = [{"messages": [says(image())], **more} for more in ({}, {"cache_salt": "a"})]
    seen = []
    for key in ("ann", "bob", None):
        for body in bodies:
            for path in ("/v1/chat/completions", "/v1/chat/completions"):
                engine.got.clear()
                sent = {"model": "scripted", **body}
                assert server.http.post(path, json=sent, headers=headers(key)).status_code == 200
                seen.append(engine.got[0].media[0].media.key)
    assert seen[0::2] == seen[1::2], "the same again"
    assert len(set(seen)) == len(seen) / 2


@pytest.mark.parametrize("options", [{}, {"max_pixels": 9}])
def test_the_key_of_an_item_without_a_salt(options: dict[str, int]) -> None:
    """It is that of states which are saved already."""

    def key(salt: str | None) -> str:
        return Media(kind="image", data=b"x", type="", options=options, salt=salt).key

    assert len({key(salt) for salt in (None, "", "None", "a")}) == 4


def cached(server: Server, key: str | None, salt: str | None = None) -> int:
    body = {"model": "hash", "prompt": LONG, "max_tokens": 1, "cache_salt": salt}
    usage = server.http.post("/v1/completions", json=body, headers=headers(key)).json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize("shared", [False, True])
def test_cached_tokens_do_not_tell_what_others_asked(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server tokenizes texts of its own, and this tokenizer knows numbers only.
    monkeypatch.setattr(Numbers, "encode", lambda *_, **__: [2])
    memory = RunnerMemory(slots=8, tokens=8 * CONTEXT)
    plugins = plugins_with(hash=engine_backend(lambda: make_engine(memory)))
    config = Config.model_validate(
        {
            "models": [{"name": "hash", "backend": "hash", "path": "."}],
            "server": {"auth": "admin", "share_prefixes": shared},
        }
    )
    most = len(LONG) - 1
    with serve(config, plugins, keys=keys_of("ann", "bob")) as server:
        assert cached(server, "ann") == 0
        assert cached(server, "ann") == most
        assert cached(server, "bob") == (most if shared else 0)
        assert cached(server, None) == (most if shared else 0)
        assert cached(server, "bob") == most
        assert cached(server, "ann", "of a user of ann") == 0
        assert cached(server, "ann", "of a user of ann") == most
        assert cached(server, "bob", "of a user of ann") == (most if shared else 0)
