"""A model's engines as an application of Ray Serve with one deployment. Every function blocks."""

import hashlib
import time
from dataclasses import dataclass
from threading import Lock
from typing import Any
from urllib.parse import quote, unquote

import ray
from ray import serve
from ray.exceptions import ActorAlreadyExistsError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus

from enginebay import BackendUnavailableError
from enginebay_cluster.contract import ClusterSettings, EngineSpec, Placement
from enginebay_cluster.ray.nodes import label_resource
from enginebay_cluster.ray.replica import EngineReplica

_PREFIX = "enginebay-"
_NAME = "engine"
_UNLIMITED = 1_000_000
"""Calls that a replica may have at once: what waits, waits at the gate and in the engine."""

_LONGEST = 150
"""Characters that an application's name may have; Ray names files after it."""

_SOME = 0.001
"""How much of a label's resource an engine takes."""

_LOAD = 0.8
"""The share of an engine's choices that is aimed at where engines come and go with the load."""

_TRIES, _AGAIN = 10, 0.5
"""How often Serve is started while somebody else does, and seconds between two times."""

_one_at_a_time = Lock()
"""Serve pickles what it deploys with settings of the whole process, changed and changed back."""

_CHOICES = 8  # of an engine that has not said how many it computes at once


def application_of(model: str) -> str:
    """The name of the application that has a model's engines."""
    return _PREFIX + quote(model, safe="")


def model_of(application: str) -> str | None:
    """The model whose engines an application has; None for an application of somebody else."""
    if not application.startswith(_PREFIX):
        return None
    return unquote(application.removeprefix(_PREFIX))


def version_of(engine: EngineSpec, settings: ClusterSettings) -> str:
    """Equal for engines that are the same: others take their place one by one."""
    timing = settings.window, settings.heartbeat
    return hashlib.sha256(repr((engine, timing)).encode()).hexdigest()[:16]


def deploy(
    engine: EngineSpec, placement: Placement, settings: ClusterSettings, choices: int | None = None
) -> DeploymentHandle[Any]:
    """See to it that the cluster runs these engines; returns at once, with what calls them.

    No effect on engines of the same version. `choices`: how many an engine computes at once, once
    that is known. `BackendUnavailableError` for a name that Ray cannot take.
    """
    name = application_of(engine.name)
    if len(name) > _LONGEST:
        raise BackendUnavailableError(
            f"its name is too long for a cluster: {len(name)} characters as Ray writes it, where "
            f"{_LONGEST} are possible; give it a shorter `name`"
        )
    with _one_at_a_time:
        _start_serve()
        deployment = serve.deployment(EngineReplica).options(
            name=_NAME,
            _internal=True,  # for `version`: without one, Serve replaces engines at every call
            version=version_of(engine, settings),
            **_number(placement, choices),
            max_ongoing_requests=_UNLIMITED,
            max_replicas_per_node=placement.per_node,
            graceful_shutdown_timeout_s=settings.drain_timeout,
            graceful_shutdown_wait_loop_s=0.5,
            health_check_period_s=5,
            health_check_timeout_s=90,
            ray_actor_options={
                "num_gpus": placement.gpus,
                "num_cpus": placement.cpus,
                "resources": {label_resource(label): _SOME for label in placement.labels},
            },
            request_router_config=RequestRouterConfig(
                request_router_class="enginebay_cluster.ray.router:ReplicaRouter"
            ),
        )
        application = deployment.bind(
            engine, version_of(engine, settings), settings.window, settings.heartbeat
        )
        target = serve.RunTarget(target=application, name=name, route_prefix=None)
        [handle] = serve.run_many([target], wait_for_applications_running=False)
        # By value: object references cost ten times as much for messages of this size.
        return handle.options(_by_reference=False)


def _start_serve() -> None:
    """No effect if it runs. Several models, or servers, may find at once that it does not."""
    for _ in range(_TRIES):
        try:
            serve.start(proxy_location="Disabled")
        except ActorAlreadyExistsError:
            time.sleep(_AGAIN)
        else:
            return
    serve.start(proxy_location="Disabled")


def _number(placement: Placement, choices: int | None) -> dict[str, Any]:
    if placement.max_replicas is None:
        return {"num_replicas": placement.replicas}
    scaling = AutoscalingConfig(
        min_replicas=placement.replicas,
        max_replicas=placement.max_replicas,
        target_ongoing_requests=max(1.0, _LOAD * (choices or _CHOICES)),
        upscale_delay_s=10,
        downscale_delay_s=600,
        metrics_interval_s=2,
        look_back_period_s=10,
    )
    return {"autoscaling_config": scaling}


@dataclass(frozen=True, slots=True)
class Trouble:
    """What the cluster says of engines that do not run, and whether it has given them up."""

    said: str
    failed: bool = False


def trouble(model: str, placement: Placement) -> Trouble:
    """Why there is no engine of a model."""
    found = serve.status().applications.get(application_of(model))
    if found is None:
        return Trouble("they were ended; load the model to start them again", failed=True)
    if missing := lacking(placement):
        return Trouble(missing)
    texts = [*(each.message for each in found.deployments.values()), found.message]
    said = next((summary(text) for text in texts if text.strip()), "")
    return Trouble(said, failed=found.status == ApplicationStatus.DEPLOY_FAILED)


def lacking(placement: Placement) -> str:
    """What no node has that an engine needs, as a sentence; empty if one has all of it."""
    wanted = [
        ("GPU", placement.gpus, f"{placement.gpus:g} GPU{'s' * (placement.gpus != 1)}"),
        ("CPU", placement.cpus, f"{placement.cpus:g} CPU{'s' * (placement.cpus != 1)}"),
        *((label_resource(label), _SOME, f"the label {label!r}") for label in placement.labels),
    ]
    nodes: list[dict[str, float]] = [each["Resources"] for each in ray.nodes() if each["Alive"]]
    if any(all(node.get(name, 0.0) >= amount for name, amount, _ in wanted) for node in nodes):
        return ""
    needed = [each for each in wanted if each[1]]
    missing = [
        each for each in needed if not any(node.get(each[0], 0.0) >= each[1] for node in nodes)
    ]
    return f"no node of the cluster has {' and '.join(text for *_, text in missing or needed)}"


def remove(model: str) -> None:
    """End a model's engines; the requests that run get `drain_timeout` seconds."""
    serve.delete(application_of(model), _blocking=False)


def remove_all() -> list[str]:
    """End those of all models; the models' names."""
    models = [model for name in serve.status().applications if (model := model_of(name))]
    for model in models:
        remove(model)
    return models


def summary(text: str) -> str:
    """In one line: the last line of a traceback, or the first line of anything else."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return ""
    line = lines[-1] if any("Traceback" in each for each in lines) else lines[0]
    return line.removeprefix("RuntimeError: ")
