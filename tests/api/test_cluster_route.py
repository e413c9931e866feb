"""`GET /v1/cluster`: what a server says of its cluster, to whom, and how often it asks."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from enginebay import Backend, hookimpl
from enginebay.config.schema import Config
from enginebay.config.wing_sections import whole_config
from enginebay.contract.backend_settings import ReportBatchSize, ReportProgress
from enginebay.server.access import keys_file
from enginebay.testing import ScriptedEngine
from enginebay_cluster.bodies import ClusterBody
from enginebay_cluster.contract import (
    Cluster,
    ClusterEngine,
    ClusterError,
    ClusterModel,
    ClusterNode,
    ClusterSettings,
    ClusterStatus,
    EngineSpec,
    NodeCommand,
    NodeSettings,
    Placement,
    SharedObject,
)
from enginebay_cluster.routes import RecentStatus
from tests.support import REPOSITORY, InlineBackend, Server, plugins_with, serve

GIB = 2**30
STATUS = ClusterStatus(
    nodes=[
        ClusterNode(
            id="n1",
            address="10.0.0.1",
            alive=True,
            head=True,
            cpus=8,
            free_cpus=8,
            labels=("rack",),
        ),
        ClusterNode(
            id="n2", address="10.0.0.2", alive=True, cpus=16, free_cpus=13.5, gpus=2, free_gpus=0.5
        ),
        ClusterNode(id="n3", address="10.0.0.3", alive=False, cpus=16, gpus=2),
    ],
    models=[
        ClusterModel(name="chat", wanted=2, message="no node has a free GPU for 1 engine"),
        ClusterModel(name="small", wanted=1),
    ],
    engines=[
        ClusterEngine(
            id="chat-1",
            model="chat",
            node="n2",
            state="ready",
            running=3,
            waiting=1,
            ram=2 * GIB,
            gpu=18 * GIB,
        ),
        ClusterEngine(id="chat-2", model="chat", node="", state="starting"),
        ClusterEngine(id="small-1", model="small", node="n2", state="ready", running=0),
        ClusterEngine(
            id="chat-0", model="chat", node="n3", state="unavailable", reason="its node is dead"
        ),
    ],
)


class Elsewhere(InlineBackend):
    """An engine that counts as one on another machine."""

    elsewhere = True


class FakeCluster(Cluster):
    """A cluster that says what it is told to say; as a plugin, too. `asked`: how often it was."""

    def __init__(self, status: ClusterStatus = STATUS) -> None:
        self.said: ClusterStatus | Exception = status
        self.asked = 0
        self.engines: list[tuple[EngineSpec, Placement]] = []

    @hookimpl
    def make_cluster(self, settings: ClusterSettings) -> Cluster:
        return self

    def missing(self) -> str | None:
        return None

    async def connect(self) -> None:
        pass

    def backend(
        self,
        engine: EngineSpec,
        placement: Placement,
        *,
        report_progress: ReportProgress,
        report_batch_size: ReportBatchSize,
    ) -> Backend:
        self.engines.append((engine, placement))
        return Elsewhere(ScriptedEngine(["ok"]))

    async def share(self, name: str, create: Callable[[], Any]) -> SharedObject:
        raise ClusterError("nothing is shared here")

    async def status(self) -> ClusterStatus:
        self.asked += 1
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    async def remove(self, model: str | None = None) -> Sequence[str]:
        return []

    async def close(self) -> None:
        pass

    def node_command(self, node: NodeSettings) -> NodeCommand:
        raise ClusterError("no node can be started here")


@contextmanager
def clustered(cluster: FakeCluster, **server: Any) -> Iterator[Server]:
    """A server in this cluster, with the model `chat` there and `here` in its own process."""
    models = [
        {"name": "chat", "backend": "scripted", "path": "/nowhere", "cluster": {"replicas": 2}},
        {"name": "here", "backend": "scripted", "path": "."},
    ]
    written = {"cluster": {}, "models": models, "server": server}
    config = whole_config().model_validate(written)
    plugins = plugins_with(scripted=lambda settings: InlineBackend(ScriptedEngine(["ok"])))
    plugins._manager.register(cluster)
    with serve(config, plugins) as running:
        yield running


def test_nodes_models_and_engines() -> None:
    """SCALE-20, over HTTP."""
    with clustered(FakeCluster()) as server:
        response = server.http.get("/v1/cluster")
        assert server.http.get("/cluster").json() == response.json()
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["object"] == "cluster"
    head, busy, dead = answer["nodes"]
    assert head == {
        "id": "n1",
        "address": "10.0.0.1",
        "alive": True,
        "head": True,
        "cpus": 8,
        "free_cpus": 8,
        "gpus": 0,
        "free_gpus": None,
        "labels": ["rack"],
    }
    assert (busy["free_cpus"], busy["free_gpus"], dead["alive"]) == (13.5, 0.5, False)
    assert answer["models"] == [
        {
            "name": "chat",
            "wanted": 2,
            "ready": 1,
            "message": "no node has a free GPU for 1 engine",
        },
        {"name": "small", "wanted": 1, "ready": 1, "message": ""},
    ]
    assert answer["engines"][0] == {
        "id": "chat-1",
        "model": "chat",
        "node": "n2",
        "state": "ready",
        "running": 3,
        "waiting": 1,
        "ram": 2 * GIB,
        "gpu": 18 * GIB,
        "reason": None,
    }
    assert [each["state"] for each in answer["engines"]] == [
        "ready",
        "starting",
        "ready",
        "unavailable",
    ]


def test_a_cluster_that_cannot_be_reached() -> None:
    cluster = FakeCluster()
    cluster.said = ClusterError("nothing listens at 10.0.0.1:6379; run `enginebay cluster up`")
    with clustered(cluster) as server:
        response = server.http.get("/v1/cluster")
    assert response.status_code == 503
    error = response.json()["error"]
    assert error["code"] == "cluster_unavailable"
    assert "enginebay cluster up" in error["message"]


def test_what_is_no_text_is_escaped() -> None:
    engine = ClusterEngine(id="1", model="chat", node="", state="unavailable", reason="\ud83d!")
    model = ClusterModel(name="chat", wanted=1, message="half \ud83d")
    with clustered(FakeCluster(ClusterStatus([], [model], [engine]))) as server:
        answer = server.http.get("/v1/cluster").json()
    assert answer["engines"][0]["reason"] == "?!"
    assert answer["models"][0]["message"] == "half ?"


def test_without_a_cluster() -> None:
    config = Config.model_validate({})
    with serve(config, plugins_with()) as server:
        response = server.http.get("/v1/cluster")
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["code"] == "no_cluster"
    assert "add the section `cluster` to the config" in error["message"]


def test_it_is_for_admins(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yml"
    root = keys_file.new_entry("root", "an-admin-key", "admin")
    keys_file.create(keys, [keys_file.new_entry("friend", "a-user-key"), root])
    cluster = FakeCluster()
    with clustered(cluster, keys_file=str(keys), auth="admin") as server:
        for key, status in ((None, 401), ("a-user-key", 403), ("an-admin-key", 200)):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            response = server.http.get("/v1/cluster", headers=headers)
            assert response.status_code == status, response.text
            assert ("10.0.0.1" in response.text) == (status == 200)
    assert cluster.asked == 1


class Slow(FakeCluster):
    """Answers when it is let to."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def status(self) -> ClusterStatus:
        self.asked += 1
        await self.go.wait()
        return STATUS


async def test_those_who_ask_at_once_share_an_answer() -> None:
    cluster, now = Slow(), [100.0]
    recent = RecentStatus(cluster, lambda: now[0])
    asking = [asyncio.create_task(recent.get()) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking[0].cancel()  # the others still get theirs
    now[0] += 10  # however long it takes
    cluster.go.set()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:] == [STATUS, STATUS]
    now[0] += 0.9
    assert await recent.get() == STATUS
    assert cluster.asked == 1
    now[0] += 0.2
    await recent.get()
    assert cluster.asked == 2


async def test_a_failure_is_shared_for_as_long() -> None:
    cluster, now = FakeCluster(), [100.0]
    cluster.said = ClusterError("away")
    recent = RecentStatus(cluster, lambda: now[0])
    for _ in range(2):
        with pytest.raises(ClusterError, match="away"):
            await recent.get()
    assert cluster.asked == 1
    cluster.said = STATUS
    now[0] += 1
    assert await recent.get() == STATUS


async def test_an_answer_that_nobody_waits_for_is_logged_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Slow()
    recent = RecentStatus(cluster)
    asking = asyncio.create_task(recent.get())
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    cluster.go.set()
    assert await recent.get() == STATUS
    assert (cluster.asked, caplog.records) == (1, [])


@pytest.mark.parametrize("query", ["", "?context_length=256"])
def test_the_memory_of_a_model_in_the_cluster(query: str) -> None:
    """Its path need not be on this machine."""
    with clustered(FakeCluster()) as server:
        response = server.http.get(f"/v1/models/chat/memory{query}")
        assert response.status_code == 400
        message = response.json()["error"]["message"]
        assert "run on machines of the cluster" in message
        assert "GET /v1/cluster" in message
        assert server.http.get("/v1/models/here/memory").status_code == 200


def test_a_load_command_is_about_its_engines() -> None:
    """They stay where they are, with other options."""
    cluster = FakeCluster()
    with clustered(cluster) as server:
        body = {"options": {"context_length": 64}, "stream": False}
        answer = server.http.post("/v1/models/chat/load", json=body)
        assert answer.status_code == 200, answer.text
        said = server.http.post("/v1/completions", json={"model": "chat", "prompt": "x"})
        assert said.json()["choices"][0]["text"] == "ok"
    [(_, first), (engine, second)] = cluster.engines
    assert (engine.backend, engine.options) == ("scripted", {"context_length": 64})
    assert first == second == Placement(replicas=2)


def test_the_answer_in_the_documentation() -> None:
    """It has the fields of the real one."""
    page = (REPOSITORY / "docs" / "guides" / "page.md").read_text(encoding="utf-8")
    section = page.partition("\n## `GET /v1/cluster`\n")[2].partition("\n## ")[0]
    [shown] = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    assert ClusterBody.model_validate_json(shown).model_dump() == json.loads(shown)
