"""When models are loaded, who waits for that, and what those get who cannot have them."""

import asyncio

import pytest

from enginebay.contract.errors import BackendUnavailableError, ModelNotFoundError, QueueFullError
from tests.models.conftest import House, ask, hold, settle, states


async def test_what_is_loaded_at_start(house: House) -> None:
    a, b, c = ({"name": name, "load": load} for name, load in zip("abc", LOADS, strict=True))
    async with house.models(a, b, c) as models:
        assert states(models) == {"a": "unloaded", "b": "unloaded", "c": "unloaded"}
        await models.load_at_start()
        assert states(models) == {"a": "ready", "b": "unloaded", "c": "unloaded"}
        assert not models.starting


LOADS = ("start", "request", "command")


async def test_one_load_for_all_who_wait(house: House) -> None:
    house.may_start.clear()
    async with house.models({"name": "a"}) as models:
        asking = [asyncio.create_task(ask(models, "a")) for _ in range(50)]
        await settle()
        assert states(models) == {"a": "loading"}
        assert str(models.find("a").progress) == "weights, 50%"
        house.may_start.set()
        assert await asyncio.gather(*asking) == ["a"] * 50
        assert house.started == ["a"]
        assert models.find("a").use.count == 0


async def test_who_leaves_does_not_stop_the_load(house: House) -> None:
    house.may_start.clear()
    async with house.models({"name": "a"}) as models:
        leaves, stays = (asyncio.create_task(ask(models, "a")) for _ in range(2))
        await settle()
        leaves.cancel()
        await settle()
        assert leaves.cancelled()
        house.may_start.set()
        assert await stays == "a"
        assert models.find("a").use.count == 0


async def test_all_who_wait_for_a_load_may_leave(house: House) -> None:
    house.may_start.clear()
    async with house.models({"name": "a"}) as models:
        leaves = asyncio.create_task(ask(models, "a"))
        await settle()
        leaves.cancel()
        house.may_start.set()
        await models.load(models.find("a"))
        assert states(models) == {"a": "ready"}


async def test_waiting_has_a_limit(house: House) -> None:
    house.may_start.clear()
    async with house.models({"name": "a"}, timeout=0) as models:
        with pytest.raises(BackendUnavailableError, match=r"still loading .*try again"):
            await ask(models, "a")
        house.may_start.set()
        await models.load(models.find("a"))
        assert await ask(models, "a") == "a"  # what is loaded needs no time at all
        assert house.started == ["a"]


async def test_no_more_wait_for_a_load_than_for_the_engine(house: House) -> None:
    house.may_start.clear()
    async with house.models({"name": "a", "max_queue": 2}) as models:
        asking = [asyncio.create_task(ask(models, "a")) for _ in range(2)]
        await settle()
        with pytest.raises(QueueFullError, match=r"still loading .* no more than 2 requests"):
            await ask(models, "a")
        house.may_start.set()
        assert await asyncio.gather(*asking) == ["a", "a"]
        assert models.find("a").use.waiting == 0


async def test_a_model_that_is_loaded_on_command_only(house: House) -> None:
    async with house.models({"name": "a", "load": "command"}) as models:
        with pytest.raises(BackendUnavailableError, match="not loaded; it is loaded on command"):
            await ask(models, "a")
        await models.load(models.find("a"))
        assert await ask(models, "a") == "a"


async def test_models_are_loaded_one_after_the_other(house: House) -> None:
    house.may_start.clear()
    async with house.models({"name": "a"}, {"name": "b"}) as models:
        asking = [asyncio.create_task(ask(models, name)) for name in "ab"]
        await settle()
        assert house.started == ["a"]
        assert states(models) == {"a": "loading", "b": "loading"}
        assert models.find("b").progress.stage == "waiting"
        house.may_start.set()
        assert await asyncio.gather(*asking) == ["a", "b"]


async def test_a_failed_load_says_why_and_is_tried_again_after_a_while(house: House) -> None:
    house.broken["a"] = "its file is not there"
    async with house.models({"name": "a"}, retry_after=30) as models:
        for _ in range(3):
            with pytest.raises(BackendUnavailableError, match="its file is not there") as error:
                await ask(models, "a")
        assert error.value.retry_after == 30
        assert (states(models), house.started) == ({"a": "failed"}, ["a"])
        house.clock.advance(30)
        with pytest.raises(BackendUnavailableError, match="its file is not there"):
            await ask(models, "a")
        assert len(house.started) == 2
        house.broken.clear()
        house.clock.advance(30)  # the second time it is twice as long
        with pytest.raises(BackendUnavailableError, match="its file is not there"):
            await ask(models, "a")
        house.clock.advance(30)
        assert await ask(models, "a") == "a"
        assert models.find("a").error is None
        assert house.closed == ["a"] * 2


async def test_a_failed_load_is_tried_again_on_command_at_once(house: House) -> None:
    house.broken["a"] = "no"
    async with house.models({"name": "a", "load": "start"}) as models:
        await models.load_at_start()
        assert states(models) == {"a": "failed"}
        house.broken.clear()
        await models.load(models.find("a"))
        assert await ask(models, "a") == "a"


async def test_aliases_are_names(house: House) -> None:
    async with house.models({"name": "a", "aliases": ["one", "first"]}, {"name": "b"}) as models:
        assert await ask(models, "first") == "a"
        assert await ask(models, None) == "a"
        with pytest.raises(ModelNotFoundError):
            await ask(models, "second")


async def test_models_that_are_like_each_other_share_a_backend(house: House) -> None:
    a = {"name": "a", "options": {"size": 1}, "sampling": {"temperature": 0.1, "top_p": 0.5}}
    b = {"name": "b", "like": "a", "sampling": {"temperature": 0.9}}
    c = {"name": "c", "like": "b", "options": {"size": 2}}
    async with house.models(a, b, c) as models:
        for name in "abc":
            await ask(models, name)
        assert house.started == ["a", "c"]
        assert models.find("a").served().backend is models.find("b").served().backend
        assert models.find("b").config.sampling.params == {"temperature": 0.9, "top_p": 0.5}
        assert models.find("c").config.sampling.params == {"temperature": 0.9, "top_p": 0.5}
        await models.unload(models.find("a"))
        assert (house.closed, await ask(models, "b")) == ([], "b")
        await models.unload(models.find("b"))
        assert house.closed == ["a"]


async def test_an_alias_that_fails_leaves_the_backend_to_others(house: House) -> None:
    b = {"name": "b", "like": "a", "chat_template": "there is no such"}
    async with house.models({"name": "a"}, b) as models:
        await ask(models, "a")
        with pytest.raises(BackendUnavailableError, match="there is no chat template"):
            await ask(models, "b")
        assert (await ask(models, "a"), house.closed) == ("a", [])


async def test_no_request_is_let_in_while_everything_is_closed(house: House) -> None:
    async with house.models({"name": "a"}) as models:
        _, end = await hold(models, "a")
        await models.close()
        assert house.closed == ["a"]
        with pytest.raises(BackendUnavailableError, match="unloaded"):
            await ask(models, "a")
        await end()
        assert models.find("a").use.count == 0
