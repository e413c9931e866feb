"""What fits: estimates against free memory, with scripted sizes (ENG-2, GPU-3)."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from enginebay import BackendUnavailableError
from enginebay.config.schema import Config
from enginebay.contract.backend_settings import BackendSettings
from enginebay.contract.estimates import FreeMemory, MemoryEstimate, MemoryPart, MemoryUse
from enginebay.contract.registers import BackendEntry
from enginebay.models.files.model_paths import ModelPaths
from enginebay.models.loading.fit import Estimates
from enginebay.models.registry import Models
from tests.models.conftest import GIB, FakeBackend, House, ask, hold, states
from tests.support import plugins_with

Estimate = Callable[[BackendSettings, FreeMemory], MemoryEstimate]


def weights_and_cache(settings: BackendSettings, free: FreeMemory) -> MemoryEstimate:
    """Weights of `gib` GiB of RAM, and a cache of 1 GiB for each 1,024 tokens, at 2 bytes."""
    options = settings.options
    if options.get("broken"):
        raise BackendUnavailableError("its header cannot be read")
    length = options.get("context_length", 4096)
    cached = length * GIB // 1024 // (2 if options.get("cache_type") == "q8_0" else 1)
    weights = options["gib"] * GIB
    halves = [{"context_length": length >> step} for step in range(1, length.bit_length())]
    return MemoryEstimate(
        parts=(MemoryPart("weights", weights), MemoryPart("kv_cache", cached)),
        least=MemoryUse(weights + cached),
        mapped=weights if options.get("mapped") else 0,
        context_length=length,
        smaller=(*halves, {"cache_type": "q8_0"}, {"max_batch_size": 1}),
    )


@asynccontextmanager
async def models(house: House, *named: dict[str, Any], **loading: Any) -> AsyncIterator[Models]:
    """These models, of `gib` GiB each, with a backend that makes estimates."""
    made = {"backend": "fake", "path": ".", "load": "request"}
    config = Config.model_validate({"models": [{**made, **m} for m in named], "loading": loading})
    plugins = plugins_with()
    plugins.backends(
        "fake",
        BackendEntry(lambda settings: FakeBackend(settings, house), estimate=weights_and_cache),
    )
    found = Models(config, plugins, lambda *_: None, clock=house.clock, meter=house.meter)
    try:
        yield found
    finally:
        await found.close()


def of(name: str, gib: int, **options: Any) -> dict[str, Any]:
    return {"name": name, "options": {"gib": gib, "context_length": 1024, **options}}


async def test_idle_models_make_room_where_no_limits_are_set(house: House) -> None:
    house.memory = {name: MemoryUse(9 * GIB) for name in "abc"}
    async with models(house, of("a", 8), of("b", 8), of("c", 8)) as house_models:
        await ask(house_models, "a")
        house.clock.advance(1)
        await ask(house_models, "b")
        assert house.running == ["a", "b"]
        await ask(house_models, "c")
        assert states(house_models) == {"a": "unloaded", "b": "ready", "c": "ready"}


async def test_pinned_models_stay(house: House) -> None:
    house.memory = {name: MemoryUse(9 * GIB) for name in "abc"}
    pinned = {**of("a", 8), "pinned": True}
    async with models(house, pinned, of("b", 8), of("c", 8)) as house_models:
        await ask(house_models, "a")
        await ask(house_models, "b")
        await ask(house_models, "c")
        assert states(house_models) == {"a": "ready", "b": "unloaded", "c": "ready"}


async def test_what_fits_beside_the_others_evicts_none(house: House) -> None:
    house.memory = {"a": MemoryUse(9 * GIB), "b": MemoryUse(9 * GIB)}
    async with models(house, of("a", 8), of("b", 8)) as house_models:
        await ask(house_models, "a")
        await ask(house_models, "b")
        assert states(house_models) == {"a": "ready", "b": "ready"}


async def test_what_is_too_large_says_by_how_much_and_what_helps(house: House) -> None:
    house.memory = {"a": MemoryUse(4 * GIB)}
    large = of("large", 22, context_length=16384)
    async with models(house, of("a", 3), large) as house_models:
        await ask(house_models, "a")
        await house_models.load(house_models.find("large"))
        problem = house_models.find("large").error or ""
        assert "it needs at least 38.0 GiB of RAM and 20.0 GiB are free, 18.0 GiB" in problem
        assert "`context_length: 1` saves 16.0 GiB" in problem
        assert "`cache_type: q8_0` saves 8.0 GiB" in problem
        assert "a smaller quantization" in problem
        assert "max_batch_size" not in problem  # it would save nothing
        assert states(house_models) == {"a": "ready", "large": "unloaded"}  # none went for nothing


async def test_the_mildest_setting_that_is_enough_is_named(house: House) -> None:
    async with models(house, of("m", 20, context_length=16384)) as house_models:
        await house_models.load(house_models.find("m"))
        problem = house_models.find("m").error or ""
        assert "`context_length: 4096` saves 12.0 GiB and makes it fit" in problem


async def test_a_model_in_use_is_waited_for(house: House) -> None:
    house.memory = {"a": MemoryUse(12 * GIB), "b": MemoryUse(14 * GIB)}
    async with models(house, of("a", 11), of("b", 13)) as house_models:
        _, end = await hold(house_models, "a")
        loading = house_models.load(house_models.find("b"))
        assert not loading.done()
        await end()
        await loading
        assert states(house_models) == {"a": "unloaded", "b": "ready"}


async def test_mapped_files_and_swap_are_no_reason_to_refuse(house: House) -> None:
    async with models(house, of("mapped", 60, mapped=True), of("plain", 30)) as house_models:
        await ask(house_models, "mapped")
        house.meter.processes.clear()
        house.meter.swap = 20 * GIB
        await ask(house_models, "plain")
        assert states(house_models)["plain"] == "ready"


async def test_the_check_can_be_turned_off(house: House) -> None:
    async with models(house, of("large", 100), check_memory=False) as house_models:
        await ask(house_models, "large")
        assert states(house_models) == {"large": "ready"}


async def test_unreadable_files_are_left_to_the_load(house: House) -> None:
    house.broken["m"] = "the file is corrupt"
    async with models(house, of("m", 1, broken=True), max_ram=20) as house_models:
        await house_models.load(house_models.find("m"))
        assert house_models.find("m").error == "the file is corrupt"
        assert states(house_models) == {"m": "failed"}


async def test_limits_are_kept_by_the_estimate(house: House) -> None:
    house.memory = {"a": MemoryUse(9 * GIB), "b": MemoryUse(9 * GIB)}
    async with models(house, of("a", 8), of("b", 8), max_ram=16) as house_models:
        await ask(house_models, "a")
        await ask(house_models, "b")
        assert states(house_models) == {"a": "unloaded", "b": "ready"}


def test_a_backend_without_estimates(house: House, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"x" * 1000)
    config = Config.model_validate(
        {"models": [{"name": "m", "backend": "fake", "path": str(tmp_path)}]}
    )
    plugins = plugins_with(fake=lambda settings: FakeBackend(settings, house))
    estimates = Estimates(plugins, ModelPaths(Config(), plugins), house.meter)
    fit = estimates.fit(config.models[0])
    assert fit.estimate.total == MemoryUse(gpu=1000)  # the machine has a GPU
    assert fit.fits
    assert fit.impossible is None
    assert estimates.advice(config.models[0], fit) == []
