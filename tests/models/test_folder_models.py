"""MOD-1: models of the models folder, which requests load without a config."""

import asyncio
from pathlib import Path

import pytest

from enginebay.config.durations import seconds
from enginebay.contract.errors import BackendUnavailableError, ModelFailedError, ModelNotFoundError
from enginebay.models.registry import Models
from tests.models.conftest import House, ask, hold, settle, states


async def asked(models: Models, name: str | None) -> str:
    """What a request does: look for the model, and use it."""
    await models.look_for(name)
    return await ask(models, name)


async def listed(models: Models) -> list[str]:
    await models.look_at_folder()
    return [model.name for model in models.listed()]


async def test_the_first_request_loads_it_and_it_is_unloaded_when_idle(house: House) -> None:
    async with house.models() as models:
        assert await listed(models) == []
        with pytest.raises(BackendUnavailableError, match="put one into the folder"):
            await asked(models, None)
        (house.base / "a.fake").touch()
        assert await listed(models) == ["a.fake"]
        assert states(models) == {}
        assert await asked(models, "a.fake") == "a.fake"
        assert states(models) == {"a.fake": "ready"}
        house.clock.advance(599)
        await settle()
        assert states(models) == {"a.fake": "ready"}
        house.clock.advance(1)
        await settle()
        assert states(models) == {}
        assert await asked(models, None) == "a.fake"
        assert house.started == ["a.fake", "a.fake"]


@pytest.mark.parametrize(("idle", "ends"), [(30, True), (0, False)])
async def test_the_idle_time_of_them_all(house: House, idle: float, ends: bool) -> None:
    (house.base / "a.fake").touch()
    async with house.models(model_dir_idle_timeout=idle) as models:
        await asked(models, "a.fake")
        house.clock.advance(100_000)
        await settle()
        assert (states(models) == {}) == ends


async def test_one_that_is_added_later_is_found_by_its_first_request(house: House) -> None:
    async with house.models({"name": "m"}) as models:
        with pytest.raises(ModelNotFoundError, match=r"available: m$"):
            await asked(models, "a.fake")
        (house.base / "a.fake").touch()
        assert await asked(models, "a.fake") == "a.fake"
        assert await asked(models, None) == "m"
        with pytest.raises(ModelNotFoundError, match=r"available: m, a\.fake$"):
            await asked(models, "b.fake")


async def test_one_that_is_gone_goes_on_for_its_requests(house: House) -> None:
    file = house.base / "a.fake"
    file.touch()
    async with house.models({"name": "m"}, drain_timeout=0) as models:
        await models.look_at_folder()
        entry, leave = await hold(models, "a.fake")
        file.unlink()
        assert await listed(models) == ["m"]
        await settle()
        assert entry.served().name == "a.fake"
        with pytest.raises(ModelNotFoundError):
            await asked(models, "a.fake")
        await leave()
        await settle()
        assert (house.closed, entry.state) == (["a.fake"], "unloaded")
        assert not models._retired


async def test_a_request_that_had_found_one_that_is_gone(house: House) -> None:
    file = house.base / "a.fake"
    file.touch()
    async with house.models({"name": "m"}) as models:
        await asked(models, "a.fake")
        found = models.look_up("a.fake")
        file.unlink()
        await models.look_at_folder()
        await settle()
        with pytest.raises(ModelNotFoundError):
            async with models.lease(found):
                pass
        assert house.running == []


async def test_they_make_room_for_each_other(house: House) -> None:
    for name in ("a.fake", "b.fake"):
        (house.base / name).touch()
    async with house.models({"name": "m", "pinned": True}, max_loaded_models=2) as models:
        for name in ("m", "a.fake", "b.fake"):
            assert await asked(models, name) == name
        assert states(models) == {"m": "ready", "b.fake": "ready"}
        assert await listed(models) == ["m", "a.fake", "b.fake"]


async def test_what_the_config_has_is_not_listed_twice(house: House) -> None:
    for name in ("a.fake", "b.fake", "c.fake"):
        (house.base / name).touch()
    a = {"name": "first", "path": str(house.base / "a.fake")}
    async with house.models(a, {"name": "b.fake"}) as models:
        assert await listed(models) == ["first", "b.fake", "c.fake"]
        assert models.find("b.fake").source == "config"


async def test_nothing_of_it_if_the_config_says_so(house: House) -> None:
    (house.base / "a.fake").touch()
    async with house.models({"name": "m"}, from_model_dir=False) as models:
        assert await listed(models) == ["m"]
        with pytest.raises(ModelNotFoundError):
            await asked(models, "a.fake")


async def test_settings_beside_it(house: House) -> None:
    # general ones, those of its folder, and its own, of which the last say most
    folder = house.base / "owner" / "repository"
    folder.mkdir(parents=True)
    model = folder / "a.fake"
    model.touch()
    general = "response_role: model\nsampling: {top_k: 1, seed: 1}\noptions: {context_length: 1}"
    write(house.base / "enginebay.yml", general)
    write(house.base / "owner" / "enginebay.yml", "sampling: {seed: 2, top_p: 0.5}")
    write(folder / "a.yml", "reasoning_budget: 5")
    name = "owner/repository/a.fake"
    async with house.models() as models:
        assert await asked(models, name) == name
        config = models.find(name).config
        assert (config.response_role, config.reasoning_budget) == ("model", 5)
        assert config.options == {"context_length": 1}
        assert config.sampling.params == {"top_k": 1, "seed": 2, "top_p": 0.5}
        write(folder / "a.yml", "reasoning_budget: 9")
        await models.look_at_folder()
        entry = models.find(name)
        assert entry.config.reasoning_budget == 5  # until it is loaded the next time
        await models.unload(entry)
        await asked(models, name)
        assert entry.config.reasoning_budget == 9


def write(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8")


async def test_settings_that_are_wrong(house: House) -> None:
    for name in ("a.fake", "b.fake"):
        (house.base / name).touch()
    write(house.base / "a.yml", "overflow: no\ntools: [x]")
    async with house.models() as models:
        assert await asked(models, "b.fake") == "b.fake"
        entry = models.find("a.fake")
        assert entry.state == "failed"
        assert entry.error is not None
        assert "a.yml:1: overflow: must be 'error' or 'drop_oldest'" in entry.error
        assert "a.yml:2: tools: must be text" in entry.error
        for _ in range(2):
            with pytest.raises(ModelFailedError, match=r"settings of 'a.fake' cannot be used"):
                await asked(models, "a.fake")
            house.clock.advance(10_000)
        assert house.started == ["b.fake"]
        wrong, refused = models.folder.problems()
        assert (len(wrong), refused) == (2, [])
        write(house.base / "a.yml", "tools: none")
        assert await asked(models, "a.fake") == "a.fake"


async def test_a_name_before_other_names(house: House) -> None:
    """Whichever of them is loaded."""
    (house.base / "a.gguf").touch()  # whose other name is `a`
    (house.base / "a").mkdir()
    (house.base / "a" / "x.gguf").touch()
    async with house.models() as models:
        assert await listed(models) == ["a", "a.gguf"]
        models.find("a.gguf").begin_loading()
        assert models.find("a").name == "a"


async def test_loads_on_command(house: House) -> None:
    """They go on to be loaded by requests, with their own settings."""
    (house.base / "a.fake").touch()
    async with house.models({"name": "m"}) as models:
        await models.look_at_folder()
        entry = models.find("a.fake")
        changed = entry.config.model_copy(update={"options": {"x": 1}})
        assert models.add(changed) is entry
        await models.load(entry, changed)
        assert entry.config.options == {"x": 1}
        await models.unload(entry)
        assert await asked(models, "a.fake") == "a.fake"
        assert entry.config.options == {}


async def test_many_who_ask_at_once(house: House) -> None:
    (house.base / "a.fake").touch()
    async with house.models() as models:
        asking = [asked(models, name) for name in ["a.fake", "nothing"] * 20]
        answers = await asyncio.gather(*asking, return_exceptions=True)
        assert answers[::2] == ["a.fake"] * 20
        assert all(isinstance(error, ModelNotFoundError) for error in answers[1::2])
        assert house.started == ["a.fake"]


async def test_how_long_requests_keep_it(house: House) -> None:
    # MOD-5
    async with house.models({"name": "a", "idle_timeout": 100}, {"name": "p"}) as models:
        a = models.find("a")
        await ask(models, "a")
        for text, idle, ends in (
            ("5", 4, False),
            ("5", 5, True),
            ("1h", 3599, False),
            (-1, 1e9, False),
        ):
            async with models.lease(models.look_up("a")):
                a.stay.ask(None, seconds(text), for_everybody=True)
            house.clock.advance(idle)
            await settle()
            assert (a.state == "unloaded") == ends, text
        async with models.lease(models.look_up("a")):
            a.stay.ask(None, 0, for_everybody=True)
        assert a.state == "ready"
        house.clock.advance(0)
        await settle()
        assert a.state == "unloaded"
        await ask(models, "a")
        assert a.idle_timeout == 100  # a new load, the config's time


async def test_pinned_models_stay(house: House) -> None:
    async with house.models({"name": "a", "pinned": True}) as models:
        async with models.lease(models.look_up("a")):
            models.find("a").stay.ask(None, 0, for_everybody=True)
        house.clock.advance(1e9)
        await settle()
        assert states(models) == {"a": "ready"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((0, 0), (3.5, 3.5), (-1, float("inf")), ("-1", float("inf")), ("-1s", float("inf"))),
        *(("300", 300), ("5m", 300), ("1h30m", 5400), ("0.5s", 0.5), ("250ms", 0.25), ("0m0s", 0)),
    ],
)
def test_durations(text: float | str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["soon", "5 m", "m", "5d", "nan", "1e", "--1", "5m3"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="should be seconds"):
        seconds(text)


async def test_what_is_here_of_a_hub_is_looked_up_on_a_thread_of_its_own(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_thread = []

    def find_local(*_: object) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            on_a_thread.append(True)
        else:
            raise AssertionError("this reads files, and the event loop waits for it")

    monkeypatch.setattr("enginebay.models.files.model_paths.find_local", find_local)
    (house.base / "a.fake").touch()
    async with house.models({"name": "m", "path": "hf://owner/repo"}) as models:
        assert await listed(models) == ["m", "a.fake"]
        assert models.default.name == "m"
        assert models.look_up("a.fake").name == "a.fake"
    assert on_a_thread
