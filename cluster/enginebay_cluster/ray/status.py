"""What there is in the cluster: machines, models and engines."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException

from enginebay_cluster.contract import (
    ClusterEngine,
    ClusterError,
    ClusterModel,
    ClusterNode,
    ClusterStatus,
    EngineState,
)
from enginebay_cluster.ray.deployment import application_of, model_of, summary
from enginebay_cluster.ray.links import LOST, cancel, first_line
from enginebay_cluster.ray.messages import Report
from enginebay_cluster.ray.nodes import HEAD_RESOURCE, labels_of

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
    ours = {model: each for name, each in details.items() if (model := model_of(name))}
    deployments = {model: _deployment(each) for model, each in ours.items()}
    running = {model: ids for model, each in deployments.items() if (ids := _running(each))}
    # At once: where a machine is silent, each takes as long as it may.
    reports = await asyncio.gather(*(_told(model, ids) for model, ids in running.items()))
    told = dict(zip(running, reports, strict=True))
    models: list[ClusterModel] = []
    engines: list[ClusterEngine] = []
    for model, deployment in deployments.items():
        message = summary(deployment["message"]) or summary(ours[model]["message"])
        wanted = deployment["target_num_replicas"]
        models.append(ClusterModel(name=model, wanted=wanted, message=message))
        said = told.get(model, {})
        engines += [
            _engine(model, each, said.get(each["replica_id"])) for each in deployment["replicas"]
        ]
    return ClusterStatus(nodes, models, engines)


def _deployment(application: Mapping[str, Any]) -> Mapping[str, Any]:
    """The only one of a model's application; none is there while it is being made."""
    [deployment] = application["deployments"].values() or [_NOT_YET]
    found: Mapping[str, Any] = deployment
    return found


def _running(deployment: Mapping[str, Any]) -> list[str]:
    """The ids of its engines that take requests."""
    return [each["replica_id"] for each in deployment["replicas"] if each["state"] == "RUNNING"]


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
            head=HEAD_RESOURCE in there,
            cpus=there.get("CPU", 0.0),
            free_cpus=left.get("CPU", 0.0) if node["Alive"] else None,
            gpus=there.get("GPU", 0.0),
            free_gpus=left.get("GPU", 0.0) if node["Alive"] else None,
            labels=labels_of(there),
        )


async def _told(model: str, replicas: Sequence[str]) -> dict[str, Report]:
    """What these engines, which take requests, say of themselves; without those that are silent."""
    handle = await asyncio.to_thread(serve.get_app_handle, application_of(model))

    async def ask(replica: str) -> Report | None:
        response = handle.describe.remote(replica=replica)
        try:
            async with asyncio.timeout(_PATIENCE):
                report: Report = await response
                return report
        except LOST:
            return None
        except TimeoutError:
            return None
        finally:
            cancel(response)

    reports = await asyncio.gather(*map(ask, replicas))
    return {id: each for id, each in zip(replicas, reports, strict=True) if each is not None}


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
