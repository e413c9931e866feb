"""Models whose engines run in a cluster: what the server does for any `Cluster`."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import enginebay
from enginebay import EngineBackend, ModelInfo, hookimpl
from enginebay.config.schema import Config
from enginebay.config.wing_sections import whole_config
from enginebay.contract.backend import Backend
from enginebay.contract.errors import BackendUnavailableError
from enginebay.contract.estimates import MemoryUse
from enginebay.models.check_config import check_config
from enginebay.models.registry import Models
from enginebay.serving.parts import parts_of
from enginebay.testing import ScriptedEngine
from enginebay_cluster.contract import EngineSpec, Placement
from enginebay_cluster.engine_spec import create_backend, placement
from enginebay_cluster.settings import PlacementConfig
from tests.support import REPOSITORY, plugins_with

NOWHERE = "/there/is/no/such/file"


class Remote(EngineBackend):
    """An engine that is said to be on other machines."""

    elsewhere = True
    memory = MemoryUse(ram=7 << 30)

    def __init__(self, engine: EngineSpec, report: Callable[[int | None], None]) -> None:
        super().__init__(lambda: ScriptedEngine(["ok"]))
        self.engine = engine
        self.report = report
        self.ended: list[str] = []
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.fails = False
        self.lost: str | None = None
        self.starts = 0

    @property
    def unavailable(self) -> str | None:
        return self.lost or super().unavailable

    async def start(self) -> ModelInfo:
        await self.may_start.wait()
        if self.fails:
            raise BackendUnavailableError("these options are wrong")
        return await super().start()

    async def start_again(self) -> None:
        self.starts += 1
        self.lost = None

    async def close(self) -> None:
        self.ended.append("close")
        await super().close()

    async def disconnect(self) -> None:
        self.ended.append("disconnect")
        await super().close()


class FakeCluster:
    """Makes such backends, and remembers them; as a plugin, too."""

    extra = None

    @hookimpl
    def make_cluster(self, settings: object) -> "FakeCluster":
        return self

    def __init__(self) -> None:
        self.made: list[Remote] = []
        self.placements: list[Placement] = []
        self.next: Callable[[Remote], None] = lambda _: None

    async def connect(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def backend(
        self,
        engine: EngineSpec,
        placement: Placement,
        *,
        report_progress: object,
        report_batch_size: Callable[[int | None], None],
    ) -> Backend:
        remote = Remote(engine, report_batch_size)
        self.next(remote)
        self.made.append(remote)
        self.placements.append(placement)
        return remote


def config(**more: Any) -> Config:
    model = {"name": "far", "backend": "scripted", "path": NOWHERE, "cluster": {"replicas": 2}}
    loading = {"max_ram": 1, "max_loaded_models": 1, "check_memory": True}
    return whole_config().model_validate(
        {"models": [model | more], "cluster": {}, "loading": loading | {"from_model_dir": False}}
    )


def models_of(config: Config, cluster: FakeCluster | None) -> Models:
    plugins = plugins_with(scripted=lambda _: EngineBackend(lambda: ScriptedEngine(["ok"])))
    if cluster is None:
        return Models(config, plugins, lambda *_: None)
    plugins._manager.register(cluster)
    parts = parts_of(config, plugins, plugins.wings.values(), for_server=False)
    return Models(config, plugins, lambda *_: None, make_backend=parts.make_backend)


@asynccontextmanager
async def served(config: Config, cluster: FakeCluster | None) -> AsyncIterator[Models]:
    models = models_of(config, cluster)
    try:
        await models.load_at_start()
        yield models
    finally:
        await models.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop and its threads work until this is so."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (nothing else tells)
            await asyncio.sleep(0.001)


async def test_its_files_and_its_memory_are_not_this_machines() -> None:
    cluster = FakeCluster()
    near = {"name": "near", "backend": "scripted", "path": str(REPOSITORY)}
    both = config()
    both.models.append(type(both.models[0]).model_validate(near))
    async with served(both, cluster) as models:
        assert [model.state for model in models.all()] == ["ready", "ready"]
        far = models.find("far")
        assert far.memory == MemoryUse(ram=7 << 30)
        [remote] = cluster.made
        assert remote.engine.path == NOWHERE
        assert cluster.placements == [Placement(replicas=2)]
    assert remote.ended == ["disconnect"]


async def test_unloading_ends_its_engines() -> None:
    cluster = FakeCluster()
    async with served(config(), cluster) as models:
        await models.unload(models.find("far"))
        assert cluster.made[0].ended == ["close"]


async def test_loading_starts_engines_again_that_were_ended_by_others() -> None:
    cluster = FakeCluster()
    async with served(config(), cluster) as models:
        [remote] = cluster.made
        far = models.find("far")
        await asyncio.wait({models.load(far)})
        assert remote.starts == 0
        remote.lost = "they were ended"
        assert (far.state, far.stage) == ("loading", "they were ended")
        await asyncio.wait({models.load(far)})
        assert (far.state, far.stage) == ("ready", "ready")
        assert (remote.starts, remote.ended) == (1, [])


@pytest.mark.parametrize(("max_running", "room"), [(None, (5, 10, 13)), (3, (3, 3, 3))])
async def test_what_is_admitted_follows_the_engines(  # SCALE-17
    max_running: int | None, room: tuple[int, int, int]
) -> None:
    cluster = FakeCluster()
    cluster.next = lambda remote: remote.report(8)  # before it has started
    async with served(config(max_running=max_running), cluster) as models:
        started = models.find("far").started
        assert started
        seen = [started.gate.size.max_running]
        for batch in (4, 10):
            cluster.made[0].report(batch)
            seen.append(started.gate.size.max_running)
        assert (seen[1], seen[0], seen[2]) == room


async def test_a_server_in_no_cluster_says_so() -> None:
    async with served(config(), None) as models:
        model = models.find("far")
        assert model.state == "failed"
        assert "add the section `cluster`" in str(model.error)


async def test_the_old_engines_answer_until_there_are_new_ones(  # SCALE-13
    tmp_path: Path,
) -> None:
    cluster = FakeCluster()
    async with served(config(), cluster) as models:
        [old] = cluster.made
        cluster.next = lambda remote: remote.may_start.clear()
        await models.use_config(config(options={"other": 1}))
        async with models.lease(models.look_up("far")) as leased:
            assert leased.backend is old
            await until(lambda: len(cluster.made) == 2)
            [_, new] = cluster.made
            new.may_start.set()
            await until(lambda: models.find("far").is_loaded)
            async with models.lease(models.look_up("far")) as later:
                assert later.backend is new
            assert not old.ended  # somebody still reads
        await until(lambda: bool(old.ended))
        assert (old.ended, new.ended) == (["close"], [])


async def test_models_of_the_cluster_are_loaded_at_once() -> None:
    cluster = FakeCluster()
    several = config()
    for name in ("second", "third"):
        several.models.append(config(name=name, options={name: 1}).models[0])
    starting = [asyncio.Event() for _ in several.models]

    def begin(remote: Remote) -> None:
        remote.may_start.clear()
        starting[len(cluster.made)].set()

    cluster.next = begin
    models = models_of(several, cluster)
    loading = asyncio.create_task(models.load_at_start())
    await asyncio.gather(*(each.wait() for each in starting))
    for remote in cluster.made:
        remote.may_start.set()
    await loading
    assert [model.state for model in models.all()] == ["ready"] * 3
    await models.close()


async def test_new_engines_that_do_not_start_take_nothing_away() -> None:
    cluster = FakeCluster()
    async with served(config(), cluster) as models:
        [old] = cluster.made

        def fail(remote: Remote) -> None:
            remote.fails = True

        cluster.next = fail
        await models.use_config(config(options={"other": 1}))
        await until(lambda: models.find("far").state == "failed")
        async with models.lease(models.look_up("far")) as leased:
            assert leased.backend is old
        cluster.next = lambda _: None
        await models.use_config(config(options={"other": 2}))
        await until(lambda: models.find("far").is_loaded)
        await until(lambda: bool(old.ended))


@pytest.mark.parametrize("fails", [True, False])
async def test_unloading_ends_old_engines_whose_successors_have_not_started(fails: bool) -> None:
    cluster = FakeCluster()
    async with served(config(), cluster) as models:
        [old] = cluster.made

        def begin(remote: Remote) -> None:
            remote.fails = fails
            if not fails:
                remote.may_start.clear()

        cluster.next = begin
        await models.use_config(config(options={"other": 1}, load="command"))
        await until(lambda: len(cluster.made) == 2)
        if fails:
            await until(lambda: models.find("far").state == "failed")
        await models.unload(models.find("far"))
        assert old.ended
        assert models.find("far").state == "unloaded"
        with pytest.raises(BackendUnavailableError):
            async with models.lease(models.look_up("far")):
                pass
        assert len(cluster.made) == 2


def test_a_config_that_lacks_the_section_is_invalid() -> None:
    plugins = plugins_with(scripted=lambda _: None)
    without = config().model_copy(update={"cluster": None})
    [problem] = check_config(without, plugins)
    assert "no section `cluster`" in str(problem)
    assert check_config(config(), plugins) == []


def test_engines_that_go_with_the_load() -> None:
    config = PlacementConfig.model_validate({"replicas": {"min": 2, "max": 5}, "gpus": 0.5})
    assert placement(config) == Placement(replicas=2, max_replicas=5, gpus=0.5)


@pytest.mark.parametrize(
    "wrong",
    [{"replicas": 0}, {"replicas": {"min": 3, "max": 2}}, {"gpus": 1.5}, {"per_node": 0}],
    ids=str,
)
def test_impossible_placements_are_invalid(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=re.compile("must|at least|less|whole|greater")):
        PlacementConfig.model_validate(wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "nosuch"}, "this node has no backend 'nosuch'"),
        ({"path": NOWHERE}, "there is no file or folder /there/is/no/such/file on this node"),
        ({"path": "hf://a/b"}, "hf://a/b is not on this node; run `enginebay download`"),
    ],
    ids=str,
)
def test_what_a_node_lacks_is_named(change: dict[str, str], message: str, tmp_path: Path) -> None:
    spec = {"name": "far", "backend": "llamacpp", "path": str(tmp_path), "base": str(tmp_path)}
    folders = {name: str(tmp_path / name) for name in ("model_dir", "lora_dir", "plugins_folder")}
    with pytest.raises(BackendUnavailableError, match=re.escape(message)):
        create_backend(EngineSpec(**(spec | folders | change)), lambda *_: None)  # type: ignore[arg-type]


async def test_from_python(tmp_path: Path) -> None:
    """`enginebay.open` of a config with a cluster, which a plugin makes."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "here.py").write_text(PLUGIN, encoding="utf-8")
    models = [{"name": "far", "backend": "echo", "path": NOWHERE, "cluster": {}}]
    file = tmp_path / "config.yml"
    file.write_text(json.dumps({"models": models, "cluster": {}}), encoding="utf-8")
    async with enginebay.open(file) as model:
        assert (await model.complete("Hi")).choices[0].text == "far away"


PLUGIN = """
from enginebay.testing import ScriptedEngine
from enginebay import EngineBackend, hookimpl
from enginebay_cluster.contract import Cluster

class Here(Cluster):
    async def connect(self): pass
    async def close(self): pass
    def backend(self, engine, placement, **reports):
        return EngineBackend(lambda: ScriptedEngine(["far ", "away"]))
    missing = share = status = remove = node_command = None

@hookimpl
def make_cluster(settings):
    return Here()
"""
