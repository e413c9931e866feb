"""Whatever is asked and commanded in whatever order, nothing is lost, leaked or pulled away."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from enginebay.contract.errors import BackendUnavailableError
from enginebay.contract.estimates import MemoryUse
from enginebay.models.registry import Models
from tests.models.conftest import GIB, House, settle

NAMES = "abcd"


async def client(models: Models, house: House, chance: random.Random, seen: Counter[str]) -> None:
    """Asks for some model, perhaps leaving; the model stays as long as it is held."""
    name = chance.choice([*NAMES, None])
    try:
        async with models.lease(models.look_up(name)) as model:
            backend = model.backend
            held = model.name
            for _ in range(chance.randrange(5)):
                await asyncio.sleep(0)
                assert backend.name in house.running, held  # type: ignore[attr-defined]
            seen[held] += 1
    except BackendUnavailableError:
        seen["refused"] += 1


async def admin(models: Models, chance: random.Random) -> None:
    """Loads, unloads or switches, and may leave before that is done."""
    model = models.find(chance.choice(NAMES))
    match chance.randrange(3):
        case 0:
            await asyncio.wait({models.load(model)})
        case 1:
            await models.unload(model)
        case 2:
            await asyncio.wait({models.switch(model)})


@pytest.mark.parametrize("seed", range(12))
async def test_anything(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    house = House(tmp_path)
    house.memory = {name: MemoryUse(3 * GIB) for name in NAMES}
    models: list[dict[str, object]] = [
        {"name": "a", "pinned": chance.random() < 0.5},
        {"name": "b", "idle_timeout": 5},
        {"name": "c", "load": "start"},
        {"name": "d", "like": "a", "pinned": False},
    ]
    seen: Counter[str] = Counter()
    async with house.models(*models, max_ram=7, max_loaded_models=2) as served:
        tasks = [asyncio.create_task(served.load_at_start())]
        for _ in range(120):
            work = client(served, house, chance, seen)
            if chance.random() < 0.2:
                work.close()
                work = admin(served, chance)
            tasks.append(asyncio.create_task(work))
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            if chance.random() < 0.2:
                chance.choice(tasks).cancel()
            if chance.random() < 0.1:
                house.clock.advance(3)
            assert len(house.running) <= 2
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in ended} <= {type(None), asyncio.CancelledError}
        await settle()
        for model in served.all():
            assert (model.use.count, model.use.waiting) == (0, 0)
            assert model.state in ("unloaded", "ready"), model.error
            assert model.is_loaded == (model.state == "ready")
        assert not served._loader._loads
        for name in "bc":  # nothing is stuck
            await served.load(served.find(name))
            assert served.find(name).is_loaded
    assert not house.running
    assert seen.total() > 20
