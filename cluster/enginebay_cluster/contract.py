"""What a server needs of a cluster: engines on its machines, and objects that servers share.

A plugin returns a `Cluster` from the hook `make_cluster`. Values here are plain data that can be
pickled: they go to other machines.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from enginebay import (
    Backend,
    BackendUnavailableError,
    KvStoreSettings,
    ReportBatchSize,
    ReportProgress,
)


class ClusterError(BackendUnavailableError):
    """The cluster of this server cannot be reached, or did not do what it was asked."""

    code = "cluster_unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """How a server or a command is part of a cluster: `cluster` in the config.

    `address`: where the head listens, `HOST:PORT`, or `auto` for that of this machine's node.
    `token_file`: the absolute path of the file with the cluster's token. `heartbeat`: the longest
    silence of an engine, in seconds; after three it is given up. `window`: seconds of deltas that
    are sent as one message, 0 for each step by itself. `drain_timeout`: seconds that answers get to
    end when their engine is replaced. `shared`: whether other servers use the same engines.
    """

    address: str = "auto"
    token_file: str
    heartbeat: float = 5.0
    window: float = 0.0
    drain_timeout: float = 600.0
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """What a machine needs to make an engine of a model, as plain data: see `create_backend`.

    `name` names the engine: that of the first model of the config that uses it. `path` and `base`
    are as in `BackendSettings`; `options` are as the config has them, not validated. `model_dir`,
    `lora_dir`: where names on a hub are looked for. `plugins_folder`, `blocked`: where plugins are
    looked for beside installed ones, and which are not loaded.
    """

    name: str
    backend: str
    path: str
    base: str
    options: Mapping[str, Any] = field(default_factory=dict)
    isolation: Literal["thread", "process"] | None = None
    kv_store: KvStoreSettings | None = None
    model_dir: str = "models"
    lora_dir: str = "loras"
    plugins_folder: str = "plugins"
    blocked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How many engines of a model there are, and what each of them needs of its node.

    Up to `max_replicas` of them under load; None for `replicas`, whatever the load. `gpus` may be
    less than one, for engines that share one. `per_node`: the most on one node; None: any number.
    `labels` are those that a node was started with.
    """

    replicas: int = 1
    max_replicas: int | None = None
    gpus: float = 0.0
    cpus: float = 1.0
    per_node: int | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """A machine of the cluster. CPUs and GPUs are in the cluster's count; None is unknown."""

    id: str
    address: str
    alive: bool
    head: bool = False
    cpus: float = 0.0
    free_cpus: float | None = None
    gpus: float = 0.0
    free_gpus: float | None = None
    labels: tuple[str, ...] = ()


EngineState = Literal["starting", "ready", "unavailable", "draining"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEngine:
    """An engine somewhere in the cluster; `node` is a `ClusterNode.id`, empty before it has one.

    `running`, `waiting`: choices, as in `EngineStats`. `ram`, `gpu`: bytes of memory. `reason`: why
    it is unavailable.
    """

    id: str
    model: str
    node: str
    state: EngineState
    running: int | None = None
    waiting: int | None = None
    ram: int | None = None
    gpu: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterModel:
    """A model with engines in the cluster: how many should run, and what the cluster says of it."""

    name: str
    wanted: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The machines, models and engines of a cluster, as of now."""

    nodes: Sequence[ClusterNode]
    models: Sequence[ClusterModel]
    engines: Sequence[ClusterEngine]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """A node to be started on this machine: the head of a new cluster, or one that joins `head`.

    `host`: this machine's address for the others; None: as the cluster finds it. `port` is where
    the head listens. `cpus`, `gpus`: as many as are told to be there; None: as many as are there.
    `state_folder`: where the head keeps what it needs to go on after a restart.
    """

    head: str | None = None
    host: str | None = None
    port: int = 6379
    cpus: float | None = None
    gpus: float | None = None
    labels: tuple[str, ...] = ()
    state_folder: str = "cluster"


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """A program that is a node for as long as it runs, and what its environment has more.

    It is one when it listens at the port after `NodeSettings.port`.
    """

    argv: Sequence[str]
    env: Mapping[str, str]


class SharedObject(ABC):
    """An object of which the cluster has one, called by all servers.

    It lives somewhere in the cluster, in a process of its own, and starts anew when that is lost.
    """

    @abstractmethod
    async def call(self, method: str, *args: Any) -> Any:
        """Await a coroutine method of the object; arguments and result are pickled.

        Raises the `ServingError` that it raises, and `ClusterError` if it cannot be reached or was
        lost meanwhile: then the method may have run or not. Cancelling does not stop the method.
        """


class Cluster(ABC):
    """A cluster, as one server or command sees it. Every method runs on the event loop.

    Nothing is imported and no connection is made before `connect`, but by `node_command`. `extra`:
    the extra of Enginebay that has its library, None if it is a plugin's.
    """

    extra: str | None = None

    @abstractmethod
    def missing(self) -> str | None:
        """What is not installed, and how to install it; None if nothing is missing."""

    @abstractmethod
    async def connect(self) -> None:
        """Be part of the cluster; again has no effect. `ClusterError`, within 10 s, if it is not
        to be reached: it says what to do, and may be tried again.
        """

    @abstractmethod
    def backend(
        self,
        engine: EngineSpec,
        placement: Placement,
        *,
        report_progress: ReportProgress,
        report_batch_size: ReportBatchSize,
    ) -> Backend:
        """A backend that is all engines of a model, wherever they run. After `connect`.

        Its `start` starts those that do not run yet; its `close` ends them, unless other servers
        share them (`ClusterSettings.shared`), and its `disconnect` leaves them where they are.
        While another one that was made here for the same `EngineSpec.name` is not closed, `close`
        leaves them, too: of two, the later one has the cluster replace engines one by one.
        """

    @abstractmethod
    async def share(self, name: str, create: Callable[[], Any]) -> SharedObject:
        """The object of that name, made by `create` on some machine if there is none yet.

        `create` is a module-level class or function that is installed on every machine, or a
        `functools.partial` of one, and is called on an event loop. Connects.
        """

    @abstractmethod
    async def status(self) -> ClusterStatus:
        """What there is. Connects."""

    @abstractmethod
    async def remove(self, model: str | None = None) -> Sequence[str]:
        """End the engines of a model, or of all, and what was shared; their names. Connects."""

    @abstractmethod
    async def close(self) -> None:
        """Leave it; what runs there goes on."""

    @abstractmethod
    def node_command(self, node: NodeSettings) -> NodeCommand:
        """What makes this machine a node. `ClusterError` if it cannot be one."""
