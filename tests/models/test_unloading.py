"""Draining, switching, idle models, and making room."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from enginebay.contract.errors import BackendUnavailableError
from enginebay.contract.estimates import MemoryUse
from tests.models.conftest import GIB, House, ask, hold, settle, states


async def test_running_requests_end_before_their_model_is_unloaded(house: House) -> None:
    async with house.models({"name": "a", "load": "start"}) as models:
        await models.load_at_start()
        model, end = await hold(models, "a")
        unloading = asyncio.create_task(models.unload(model))
        await settle()
        assert (states(models), house.closed) == ({"a": "draining"}, [])
        assert model.served().info.vocab_size  # who holds it can still use it
        with pytest.raises(BackendUnavailableError, match="is being unloaded"):
            await ask(models, "a")
        await end()
        await unloading
        assert (states(models), house.closed) == ({"a": "unloaded"}, ["a"])
        with pytest.raises(BackendUnavailableError, match="load it again"):
            await ask(models, "a")


async def test_requests_that_take_too_long_are_aborted(house: House) -> None:
    async with house.models({"name": "a"}) as models:
        model, end = await hold(models, "a")
        await models.unload(model, drain_timeout=0)
        assert (states(models), house.closed) == ({"a": "unloaded"}, ["a"])
        await end()


async def test_whoever_had_no_time_left_gets_to_know_while_the_engine_stops(house: House) -> None:
    async with house.models({"name": "a"}) as models:
        await models.load(models.find("a"))
        model, end = await hold(models, "a")
        served = model.served()
        house.may_stop.clear()
        unloading = asyncio.create_task(models.unload(model, drain_timeout=0))
        await settle()
        assert (states(models), house.closed) == ({"a": "draining"}, [])
        with pytest.raises(BackendUnavailableError, match="was unloaded"):
            model.served()
        with pytest.raises(BackendUnavailableError, match="was unloaded"):
            served.gate.join()
        house.may_stop.set()
        await unloading
        await end()


async def test_requests_that_came_first_end_before_their_model_is_unloaded(house: House) -> None:
    """As long as its load looks what it takes, it is not over."""
    async with house.models({"name": "a"}) as models:
        model, end = await hold(models, "a")
        unloading = asyncio.create_task(models.unload(model))
        await settle()
        assert (states(models)["a"] in ("ready", "draining"), house.closed) == (True, [])
        assert model.served().info.vocab_size
        await end()
        await unloading
        assert (states(models), house.closed) == ({"a": "unloaded"}, ["a"])


async def test_a_reload_that_is_stopped_leaves_requests_alone(house: House) -> None:
    async with house.models({"name": "a"}) as models:
        model = models.find("a")
        await models.load(model)
        model, end = await hold(models, "a")
        models.load(model, model.config.model_copy(update={"options": {"x": 1}}))
        await settle()
        unloading = asyncio.create_task(models.unload(model))
        await settle()
        assert (states(models), house.closed) == ({"a": "draining"}, [])
        assert model.served().info.vocab_size
        await end()
        await unloading
        assert (states(models), house.closed) == ({"a": "unloaded"}, ["a"])


async def test_a_client_that_leaves_does_not_stop_the_unloading(house: House) -> None:
    async with house.models({"name": "a"}) as models:
        model, end = await hold(models, "a")
        unloading = asyncio.create_task(models.unload(model))
        await settle()
        unloading.cancel()
        await end()
        await settle()
        assert house.closed == ["a"]


async def test_a_model_that_is_loaded_on_request_comes_back(house: House) -> None:
    async with house.models({"name": "a"}) as models:
        model, end = await hold(models, "a")
        unloading = asyncio.create_task(models.unload(model))
        await settle()
        asking = asyncio.create_task(ask(models, "a"))  # waits for the next one
        await settle()
        await end()
        await unloading
        assert await asking == "a"
        assert (house.started, house.closed) == (["a", "a"], ["a"])


async def test_a_load_can_be_stopped(house: House) -> None:
    house.may_start.clear()
    async with house.models({"name": "a", "load": "command"}) as models:
        loading = models.load(models.find("a"))
        asking = asyncio.create_task(ask(models, "a"))
        await settle()
        await models.unload(models.find("a"))
        assert loading.cancelled()
        assert (states(models), house.closed) == ({"a": "unloaded"}, ["a"])
        with pytest.raises(BackendUnavailableError, match="its loading was cancelled"):
            await asking


async def test_a_switch(house: House) -> None:
    async with house.models(
        {"name": "a", "load": "start"}, {"name": "b", "load": "command"}
    ) as models:
        await models.load_at_start()
        _, end = await hold(models, "a")
        switching = models.switch(models.find("b"))
        asking = asyncio.create_task(ask(models, None))
        await settle()
        assert states(models) == {"a": "draining", "b": "loading"}
        with pytest.raises(BackendUnavailableError, match="'a' is not loaded; it is being"):
            await ask(models, "a")
        await end()
        await switching
        assert states(models) == {"a": "unloaded", "b": "ready"}
        assert await asking == "b"
        with pytest.raises(BackendUnavailableError, match="unloaded when 'b' was loaded"):
            await ask(models, "a")


async def test_a_switch_to_a_model_that_fails(house: House) -> None:
    house.broken["b"] = "no"
    async with house.models({"name": "a", "load": "start"}, {"name": "b"}) as models:
        await models.load_at_start()
        await models.switch(models.find("b"))
        assert states(models) == {"a": "unloaded", "b": "failed"}
        assert await ask(models, None) == "a"


async def test_a_switch_leaves_pinned_models(house: House) -> None:
    a = {"name": "a", "load": "start", "pinned": True}
    async with house.models(a, {"name": "b"}) as models:
        await models.load_at_start()
        await models.switch(models.find("b"))
        assert states(models) == {"a": "ready", "b": "ready"}
        assert (await ask(models, None), await ask(models, "a")) == ("b", "a")


async def test_a_load_with_other_options_loads_again(house: House) -> None:
    async with house.models({"name": "a"}) as models:
        model, end = await hold(models, "a")
        other = model.config.model_copy(update={"options": {"size": 2}})
        loading = models.load(model, other)
        await settle()
        assert states(models) == {"a": "draining"}
        await end()
        await loading
        assert model.served().backend.settings.options == {"size": 2}  # type: ignore[attr-defined]
        await models.load(model, other)
        assert house.started == ["a", "a"]
        await models.unload(model)
        await ask(models, "a")
        assert model.served().backend.settings.options == {}  # type: ignore[attr-defined]


async def test_an_idle_model_is_unloaded_and_comes_back(house: House) -> None:
    a = {"name": "a", "idle_timeout": 60, "load": "start"}
    async with house.models(a, {"name": "b", "idle_timeout": 60, "pinned": True}) as models:
        await models.load_at_start()
        await ask(models, "b")
        house.clock.advance(59)
        assert await ask(models, "a") == "a"
        house.clock.advance(59)
        await settle()
        assert states(models) == {"a": "ready", "b": "ready"}
        _, end = await hold(models, "a")
        house.clock.advance(100)
        await settle()
        assert states(models) == {"a": "ready", "b": "ready"}
        await end()
        house.clock.advance(60)
        await settle()
        assert states(models) == {"a": "unloaded", "b": "ready"}
        assert models.find("a").error == "it was idle for 60 s"
        assert await ask(models, "a") == "a"
        assert len(house.clock.timers) == 1


async def test_the_longest_unused_model_makes_room(house: House) -> None:
    async with house.models(*({"name": name} for name in "abc"), max_loaded_models=2) as models:
        for name in "abac":
            house.clock.advance(1)
            await ask(models, name)
        assert states(models) == {"a": "ready", "b": "unloaded", "c": "ready"}
        assert await ask(models, "b") == "b"
        assert states(models)["a"] == "unloaded"


async def test_room_is_waited_for_while_all_are_in_use(house: House) -> None:
    async with house.models({"name": "a"}, {"name": "b"}, max_loaded_models=1) as models:
        _, end = await hold(models, "a")
        for_b = asyncio.create_task(ask(models, "b"))
        await settle()
        for_a = asyncio.create_task(ask(models, "a"))  # behind the one for b
        await settle()
        assert (states(models), house.started) == ({"a": "draining", "b": "loading"}, ["a"])
        await end()
        assert (await for_b, await for_a) == ("b", "a")
        assert house.started == ["a", "b", "a"]


async def test_nothing_is_aborted_to_make_room(house: House) -> None:
    async with house.models({"name": "a"}, {"name": "b"}) as models:
        _, end = await hold(models, "a")
        models._loader._config.timeout = 0
        models._loader._config.max_loaded_models = 1
        await models.load(models.find("b"))
        assert states(models) == {"a": "ready", "b": "unloaded"}
        problem = models.find("b").error or ""
        assert "no room for 'b'" in problem
        assert "max_loaded_models is 1" in problem
        assert "'a' (in use, 0.0 GiB RAM), which did not become idle in time" in problem
        await end()
        assert await ask(models, "a") == "a"
        assert house.closed == []


async def test_pinned_models_stay(house: House) -> None:
    a = {"name": "a", "pinned": True}
    async with house.models(a, {"name": "b"}, max_loaded_models=1) as models:
        await ask(models, "a")
        with pytest.raises(BackendUnavailableError, match=r"loaded: 'a' \(pinned, 0.0 GiB RAM"):
            await ask(models, "b")
        assert states(models) == {"a": "ready", "b": "unloaded"}


@pytest.mark.parametrize("limits", [{"max_ram": 10}, {"max_ram": "45%"}, {"max_gpu": "50 %"}])
async def test_memory_is_measured(house: House, limits: Mapping[str, Any]) -> None:
    """Files of no size are thought to fit; then it is known what the models take."""
    house.memory = {name: MemoryUse(4 * GIB, 3 * GIB) for name in "abc"}
    async with house.models(*({"name": name} for name in "abc"), **limits) as models:
        for name in "abc":
            house.clock.advance(2)
            await ask(models, name)
            await settle()
        assert states(models) == {"a": "unloaded", "b": "ready", "c": "ready"}
        assert models.find("b").memory == MemoryUse(4 * GIB, 3 * GIB)
        await ask(models, "a")  # measured by now, so there is room before it is loaded
        assert house.started == [*"abca"]
        assert states(models) == {"a": "ready", "b": "unloaded", "c": "ready"}


async def test_what_models_grow_to_counts(house: House) -> None:
    house.memory = {"a": MemoryUse(2 * GIB), "b": MemoryUse(2 * GIB)}
    async with house.models({"name": "a"}, {"name": "b"}, max_ram=5) as models:
        await ask(models, "a")
        [pid] = house.meter.processes
        house.meter.processes[pid] = MemoryUse(4 * GIB)
        house.clock.advance(2)
        await models.measure()
        assert models.find("a").memory == MemoryUse(4 * GIB)
        await models.unload(models.find("a"))
        await ask(models, "b")
        await ask(models, "a")  # 2 and the 4 it had grown to do not fit
        assert states(models) == {"a": "ready", "b": "unloaded"}


async def test_the_size_of_files_counts_before_a_model_was_ever_loaded(house: House) -> None:
    file = house.base / "big.gguf"
    with file.open("wb") as opened:
        opened.truncate(3 * GIB)
    async with house.models({"name": "a", "path": str(file)}, max_gpu=2) as models:
        with pytest.raises(
            BackendUnavailableError,
            match=r"3\.0 GiB GPU memory, estimated from.*max_gpu is 2\.0 GiB.*loaded: none",
        ):
            await ask(models, "a")
        assert house.started == []
