"""The body of `GET /v1/cluster`."""

from dataclasses import asdict
from typing import Literal

from pydantic import BaseModel

from enginebay.contract.errors import encodable
from enginebay_cluster.contract import ClusterEngine, ClusterModel, ClusterStatus, EngineState


class NodeBody(BaseModel):
    """A machine of the cluster; CPUs and GPUs in the cluster's count, None where unknown.

    `head`: the cluster cannot start anything without it. `labels`: those it was started with.
    """

    id: str
    address: str
    alive: bool
    head: bool
    cpus: float
    free_cpus: float | None
    gpus: float
    free_gpus: float | None
    labels: list[str]


class ClusterModelBody(BaseModel):
    """How many engines of a model should run; how many are ready; what the cluster says of it.

    `name` is that of the first model of the config that uses these engines.
    """

    name: str
    wanted: int
    ready: int
    message: str

    @classmethod
    def of(cls, model: ClusterModel, status: ClusterStatus) -> "ClusterModelBody":
        """That of a model, counted over all engines."""
        ready = sum(e.model == model.name and e.state == "ready" for e in status.engines)
        message = encodable(model.message)
        return cls(name=model.name, wanted=model.wanted, ready=ready, message=message)


class EngineBody(BaseModel):
    """An engine of the model with that name; `node` is the id of one, empty before it has one.

    `running`, `waiting`: choices of answers. `ram`, `gpu`: bytes of memory. None where unknown.
    `reason`: why it is unavailable.
    """

    id: str
    model: str
    node: str
    state: EngineState
    running: int | None
    waiting: int | None
    ram: int | None
    gpu: int | None
    reason: str | None

    @classmethod
    def of(cls, engine: ClusterEngine) -> "EngineBody":
        """That of an engine; what an exception said may not be valid Unicode."""
        return cls(**{**asdict(engine), "reason": engine.reason and encodable(engine.reason)})


class ClusterBody(BaseModel):
    """The machines of the cluster, the models with engines there, and these engines."""

    object: Literal["cluster"] = "cluster"
    nodes: list[NodeBody]
    models: list[ClusterModelBody]
    engines: list[EngineBody]

    @classmethod
    def of(cls, status: ClusterStatus) -> "ClusterBody":
        """That of a status."""
        return cls(
            nodes=[NodeBody(**asdict(node)) for node in status.nodes],
            models=[ClusterModelBody.of(model, status) for model in status.models],
            engines=[EngineBody.of(engine) for engine in status.engines],
        )
