"""Adapters that are loaded while an engine runs, on a thread and in a process."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from enginebay import (
    EngineBackend,
    EngineDeadError,
    GenerationRequest,
    InvalidRequestError,
    Lora,
    ServingError,
    UnsupportedParameterError,
)
from enginebay.contract.backend_settings import Isolation
from enginebay.testing import ScriptedEngine
from tests.engine.test_engine import AT_ONCE, both, request, running, text, until_restarted


class Adapted(ScriptedEngine):
    """Says what it has loaded, and by which adapter it is asked; an adapter is a file's text."""

    def __init__(self) -> None:
        super().__init__(self._obey, context_length=10**9)
        self.info = replace(self.info, adapters=("configured",))
        self.loaded: dict[str, str] = {"configured": "from the config"}
        self.asked: str | None = None

    def _obey(self, prompt: str, index: int) -> Iterator[str]:
        match prompt:
            case "loaded":
                yield " ".join(f"{name}={text}" for name, text in self.loaded.items())
            case "raise":
                yield "a"
                raise RuntimeError("out of memory")
            case "endless":
                asked = self.asked
                while True:
                    yield self.loaded[asked] if asked else "none"
            case _:
                yield self.loaded[self.asked] if self.asked else "none"

    def add_request(self, request: GenerationRequest) -> None:
        self.asked = request.adapter
        super().add_request(request)

    def load_adapter(self, name: str, loras: Sequence[Lora]) -> None:
        assert name not in self.loaded
        try:
            texts = [f"{Path(lora.path).read_text()}*{lora.scaling:g}" for lora in loras]
        except OSError as error:
            raise InvalidRequestError(f"{name}: {error}", param="loras") from error
        if "oops*1" in texts:
            raise KeyError("oops")
        self.loaded[name] = "+".join(texts)

    def unload_adapter(self, name: str) -> None:
        if self.loaded.pop(name) == "stuck*1":
            raise InvalidRequestError("it stays")


async def ask(backend: EngineBackend, prompt: str, adapter: str | None = None) -> str:
    item = replace(request(f"{prompt} {id(object())}", prompt=prompt), adapter=adapter)
    [said] = await text(backend, item)
    return said


def rewrite(lora: Lora, text: str | None) -> None:
    """Let the file say something else, or be gone."""
    if text is None:
        Path(lora.path).unlink()
    else:
        Path(lora.path).write_text(text)


@pytest.fixture
def one(tmp_path: Path) -> Lora:
    (tmp_path / "one").write_text("one")
    return Lora(str(tmp_path / "one"))


@pytest.fixture
def two(tmp_path: Path) -> Lora:
    (tmp_path / "two").write_text("two")
    return Lora(str(tmp_path / "two"), 0.5)


@both
async def test_they_come_and_go_while_others_run(
    isolation: Isolation, one: Lora, two: Lora
) -> None:
    async with running(Adapted, isolation=isolation) as backend:
        stream = backend.generate(request("endless", prompt="endless"))
        await anext(stream)
        await backend.load_adapter("one", [one])
        await backend.load_adapter("both", [one, two])
        assert await ask(backend, "say", "one") == "one*1"
        assert await ask(backend, "say", "both") == "one*1+two*0.5"
        assert await ask(backend, "say", "configured") == "from the config"
        assert await ask(backend, "say") == "none"
        for name in ("one", "configured", "nothing"):
            await backend.unload_adapter(name)
        assert await ask(backend, "loaded") == "both=one*1+two*0.5"
        with pytest.raises(InvalidRequestError, match="no adapter 'one'"):
            await ask(backend, "say", "one")
        assert "none" in (await anext(stream)).text
        await stream.aclose()


@both
async def test_a_request_keeps_its_adapter_to_its_end(
    isolation: Isolation, one: Lora, two: Lora
) -> None:
    async with running(Adapted, isolation=isolation) as backend:
        await backend.load_adapter("mine", [one])
        item = replace(request("old", prompt="endless"), adapter="mine")
        async with aclosing(backend.generate(item)) as old:
            await anext(old)
            await backend.load_adapter("mine", [two])
            assert await ask(backend, "say", "mine") == "two*0.5"
            await backend.unload_adapter("mine")
            assert await ask(backend, "loaded") == "configured=from the config mine=one*1"
            assert "one*1" in (await anext(old)).text
        assert await ask(backend, "loaded") == "configured=from the config"


@both
async def test_one_that_fails_changes_nothing(isolation: Isolation, one: Lora) -> None:
    async with running(Adapted, isolation=isolation) as backend:
        await backend.load_adapter("mine", [one])
        missing = Lora(one.path + "-missing")
        with pytest.raises(InvalidRequestError, match="No such file") as caught:
            await backend.load_adapter("mine", [missing])
        assert caught.value.param == "loras"
        rewrite(one, "oops")
        with pytest.raises(ServingError, match="failed to load adapter: KeyError: 'oops'"):
            await backend.load_adapter("other", [one])
        assert await ask(backend, "say", "mine") == "one*1"
        assert await ask(backend, "loaded") == "configured=from the config mine=one*1"


@both
async def test_one_that_cannot_be_unloaded_is_logged(
    isolation: Isolation, one: Lora, caplog: pytest.LogCaptureFixture
) -> None:
    rewrite(one, "stuck")
    async with running(Adapted, isolation=isolation) as backend:
        await backend.load_adapter("mine", [one])
        await backend.unload_adapter("mine")
        assert await ask(backend, "loaded") == "configured=from the config"
    assert "an adapter could not be unloaded: it stays" in caplog.text


@both
async def test_an_engine_that_is_built_again_has_them_again(
    isolation: Isolation, one: Lora, two: Lora, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(Adapted, isolation=isolation, backoff=AT_ONCE) as backend:
        await backend.load_adapter("one", [one])
        await backend.load_adapter("one", [two])
        await backend.load_adapter("lost", [one])
        await backend.unload_adapter("configured")
        rewrite(one, None)
        with pytest.raises(EngineDeadError):
            await ask(backend, "raise", "one")
        await until_restarted(backend)
        assert await ask(backend, "say", "one") == "two*0.5"
        assert await ask(backend, "loaded") == "one (2)=two*0.5"
        with pytest.raises(InvalidRequestError, match="no adapter 'lost'"):
            await ask(backend, "say", "lost")
    assert "an adapter could not be reloaded" in caplog.text


@both
async def test_nobody_waits_for_one_any_more(isolation: Isolation, one: Lora) -> None:
    async with running(Adapted, isolation=isolation) as backend:
        loading = asyncio.create_task(backend.load_adapter("one", [one]))
        await asyncio.sleep(0)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        assert await ask(backend, "loaded") == "configured=from the config"


@both
async def test_engines_load_none_unless_they_say_how(isolation: Isolation, one: Lora) -> None:
    async with running(plain, isolation=isolation) as backend:
        with pytest.raises(UnsupportedParameterError, match="cannot load adapters"):
            await backend.load_adapter("one", [one])
        assert await ask(backend, "say") == "plain"


def plain() -> ScriptedEngine:
    return ScriptedEngine(["plain"])
