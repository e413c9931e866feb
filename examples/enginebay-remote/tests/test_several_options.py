"""What the config may say of several servers."""

from typing import Any

import pytest
from enginebay_remote.connecting import OneServer, connect
from enginebay_remote.options import Options
from enginebay_remote.pool import Pool
from fake import fake
from pydantic import ValidationError
from several import Clock, answer, answering, asked_of, backend, chat, fakes, started

from enginebay import BackendSettings, BackendUnavailableError

A, B = "http://a:5000/v1", "http://b:5000/v1"


@pytest.mark.parametrize(
    ("servers", "place", "said"),
    [
        (["b:5000"], ("servers", 0, "url"), "must be a server's URL"),
        ([{"drain": True}], ("servers", 0, "url"), "Field required"),
        ([{"url": B, "drains": True}], ("servers", 0, "drains"), "Extra inputs"),
        ([{"url": B, "weight": 0}], ("servers", 0, "weight"), "greater than or equal to 0.01"),
        *(
            ([{"url": B, "weight": weight}], ("servers", 0, "weight"), said)
            for weight, said in (
                (-1, "greater than or equal to 0.01"),
                (1e-9, "greater than or equal to 0.01"),
                (float("inf"), "a finite number"),
                (float("nan"), "a finite number"),
            )
        ),
        *(
            ([url], ("servers", 0, "url"), "must be a server's URL")
            for url in (
                *("http://\u2026/v1", "http://\u00fc..x/v1", "http://a..b/v1", "http://a b/v1"),
                *(
                    "http://a/v1?x=1",
                    "http://a/v1#x",
                    "http://a/v1?",
                    "http://a/\u00fc",
                    "http://a\n",
                ),
            )
        ),
        ([{"url": B, "api_key": ""}], ("servers", 0, "api_key"), "at least 1"),
        ([{"url": B, "api_key": "eb-\u2026"}], ("servers", 0, "api_key"), "printable ASCII"),
        ([{"url": B, "api_key": "eb-x\n"}], ("servers", 0, "api_key"), "printable ASCII"),
        ([B, {"url": "http://B:5000"}], ("servers",), "http://B:5000 is there twice"),
    ],
)
def test_mistakes(servers: Any, place: tuple[Any, ...], said: str) -> None:
    """Are found by `config check`, at their place."""
    with pytest.raises(ValidationError) as raised:
        Options.model_validate({"servers": servers})
    [error] = raised.value.errors()
    assert error["loc"] == place
    assert said in error["msg"]


def test_the_schema_knows_both_forms() -> None:
    """For editors that check the config."""
    items = Options.model_json_schema()["properties"]["servers"]["items"]
    assert {"type": "string"} in items["anyOf"]


async def urls(**options: Any) -> list[str]:
    """The addresses of a model at `A` with these options."""
    made = connect(BackendSettings(name="m", path=A, options=Options.model_validate(options)))
    try:
        return [each.url for each in made._upstreams.values()] if isinstance(made, Pool) else [A]
    finally:
        await made.close()


async def test_which_servers_there_are() -> None:
    """The one at `path` comes first, and may be among the others."""
    assert await urls() == [A]
    assert await urls(servers=[B]) == [A, B]
    assert await urls(servers=[B, {"url": "http://a:5000", "weight": 2}]) == ["http://a:5000", B]
    assert isinstance(connect(BackendSettings(name="m", path=A)), OneServer)


def test_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's own, or that of all."""
    for name in ("ENGINEBAY_REMOTE_API_KEY", "ALL", "OWN"):
        monkeypatch.setenv(name, name.lower())
    options = Options.model_validate(
        {
            "api_key_env": "ALL",
            "servers": [A, {"url": B, "api_key_env": "OWN"}, {"url": "http://c", "api_key": "c"}],
        }
    )
    assert [options.key(each) for each in options.servers] == ["all", "own", "c"]
    assert options.key() == "all"
    assert Options(servers=[]).key() == "enginebay_remote_api_key"


async def test_drained_by_the_config() -> None:
    """It gets nothing, not even a look. All drained is a reason of its own."""
    with fakes(answering("a"), answering("b")) as servers:
        a, b = servers
        clock = Clock(1)
        async with started([a], clock, servers=[{"url": b.url, "drain": True}]) as made:
            assert [await answer(made, chat(f"{n} " * 100)) for n in range(24)] == ["a"] * 24
            await clock.wake()
        assert b.asked == []
        here = [{"url": f"{a.url}/v1", "drain": True}, b.url]
        async with started([a], clock, servers=here) as made:
            count = asked_of(a)
            assert [await answer(made, chat(f"{n} " * 100)) for n in range(24)] == ["b"] * 24
            assert asked_of(a) == count
    with fake(answering("a")) as server:
        made = backend([server], Clock(), servers=[{"url": server.url, "drain": True}])
        with pytest.raises(BackendUnavailableError, match="it is drained by the config"):
            await made.start()
        assert server.asked == []
        await made.close()
