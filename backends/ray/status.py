"""What there is in the cluster: machines, models and engines."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException

from backends.ray.deployment import model_of, summary
from backends.ray.links import first_line
from backends.ray.messages import Report
from backends.ray.nodes import labels_of
from enginebay import (
    ClusterEngine,
    ClusterError,
    ClusterModel,
    ClusterNode,
    ClusterStatus,
    EngineState,
)

_HEAD = "node:__internal_head__"
_PATIENCE = 3.0
"""Seconds in which engines must answer."""

_ALL = 8.0
"""Seconds in which everything must have answered."""

_STATES: Mapping[str, EngineState] = {
    "STARTING": "starting",
    "UPDATING": "starting",
    "RECOVERING": "starting",
    "RUNNING": "ready",
}
_NOT_YET: Mapping[str, Any] = {"message": "", "target_num_replicas": 0, "replicas": []}


async def status() -> ClusterStatus:
    """All of it, as of now. `ClusterError` if the cluster does not answer."""
    try:
        async with asyncio.timeout(_ALL):
            return await _status()
    except (RayError, RayServeException, TimeoutError) as error:
        raise ClusterError(f"the cluster does not answer: {first_line(error)}") from error


async def _status() -> ClusterStatus:
    nodes, details = await asyncio.gather(
        asyncio.to_thread(lambda: list(_nodes())), asyncio.to_thread(_details)
    )
    models: list[ClusterModel] = []
    engines: list[ClusterEngine] = []
    for name, application in details.items():
        model = model_of(name)
        if model is None:
            continue
        [deployment] = application["deployments"].values() or [_NOT_YET]
        message = summary(deployment["message"]) or summary(application["message"])
        wanted = deployment["target_num_replicas"]
        models.append(ClusterModel(name=model, wanted=wanted, message=message))
        replicas = {each["replica_id"]: each for each in deployment["replicas"]}
        running = any(each["state"] == "RUNNING" for each in replicas.values())
        told = await _told(name) if running else {}
        engines += [_engine(model, each, told.get(id)) for id, each in replicas.items()]
    return ClusterStatus(nodes, models, engines)


def _details() -> Mapping[str, Any]:
    """What Serve says of its applications; none where it does not run yet."""
    client = _get_global_client(raise_if_no_controller_running=False)
    return client.get_serve_details()["applications"] if client else {}


def _nodes() -> Iterator[ClusterNode]:
    free: Mapping[str, Mapping[str, float]] = ray._private.state.available_resources_per_node()
    for node in ray.nodes():
        there: Mapping[str, Any] = node["Resources"]
        left = free.get(node["NodeID"], {}) if node["Alive"] else {}
        yield ClusterNode(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            alive=node["Alive"],
            head=_HEAD in there,
            cpus=there.get("CPU", 0.0),
            free_cpus=left.get("CPU", 0.0) if node["Alive"] else None,
            gpus=there.get("GPU", 0.0),
            free_gpus=left.get("GPU", 0.0) if node["Alive"] else None,
            labels=labels_of(there),
        )


async def _told(application: str) -> dict[str, Report]:
    """What the engines that take requests say of themselves, by their ids; of those that do."""
    handle = await asyncio.to_thread(serve.get_app_handle, application)
    answers = await handle.broadcast("describe").results_async(
        timeout_s=_PATIENCE, return_exceptions=True
    )
    return dict(answer for answer in answers if not isinstance(answer, BaseException))


def _engine(model: str, replica: Mapping[str, Any], report: Report | None) -> ClusterEngine:
    state = _STATES.get(replica["state"], "draining")
    reason = report.unavailable if report else None
    if state == "ready" and report is None:
        reason = "it does not answer"
    stats, memory = (report.stats, report.memory) if report else (None, None)
    return ClusterEngine(
        id=replica["replica_id"],
        model=model,
        node=replica.get("node_id") or "",
        state="unavailable" if reason else state,
        running=stats.running if stats else None,
        waiting=stats.waiting if stats else None,
        ram=memory.ram if memory else None,
        gpu=memory.gpu if memory else None,
        reason=reason,
    )
