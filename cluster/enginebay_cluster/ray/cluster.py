"""A cluster of Ray, as one server or command sees it."""

import asyncio
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from enginebay import Backend, ReportBatchSize, ReportProgress
from enginebay_cluster.contract import (
    Cluster,
    ClusterError,
    ClusterSettings,
    ClusterStatus,
    EngineSpec,
    NodeCommand,
    NodeSettings,
    Placement,
    SharedObject,
)
from enginebay_cluster.ray.nodes import node_command

if TYPE_CHECKING:
    from enginebay_cluster.ray.engines import RayBackend
    from enginebay_cluster.ray.placing import Placer

_PATIENCE = 10.0
"""Seconds within which the cluster must answer."""


class RayCluster(Cluster):
    """Ray is imported by `connect`, on a thread, since that takes a second."""

    extra = "ray"

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._connecting: asyncio.Future[None] | None = None
        self._placer: Placer | None = None
        self._backends: dict[str, list[RayBackend]] = {}

    def missing(self) -> str | None:
        if find_spec("ray") and find_spec("grpc"):
            return None
        return (
            "engines on other machines need Ray; install it on every node with: "
            "python3 start.py install ray, or without a checkout: pip install 'enginebay[ray]'"
        )

    async def connect(self) -> None:
        if missing := self.missing():
            raise ClusterError(missing)
        if self._connecting is None or _failed(self._connecting):
            from enginebay_cluster.ray.connection import in_background

            self._connecting = asyncio.wrap_future(in_background(self._settings))
        try:
            async with asyncio.timeout(_PATIENCE):
                await asyncio.shield(self._connecting)
        except TimeoutError:
            raise ClusterError(
                f"the cluster at {self._settings.address} does not answer; is its head running "
                "(enginebay cluster up), and do firewalls between the machines let it through?"
            ) from None

    def backend(
        self,
        engine: EngineSpec,
        placement: Placement,
        *,
        report_progress: ReportProgress,
        report_batch_size: ReportBatchSize,
    ) -> Backend:
        from enginebay_cluster.ray.engines import RayBackend

        backend = RayBackend(
            engine,
            placement,
            self._settings,
            find_placer=self._find_placer,
            remove=self._remove,
            report_progress=report_progress,
            report_batch_size=report_batch_size,
        )
        self._backends.setdefault(engine.name, []).append(backend)
        return backend

    async def _find_placer(self) -> "Placer":
        """That of all backends here."""
        if self._placer is None:
            from enginebay_cluster.ray.placing import Placements, Placer

            shared = None
            if self._settings.shared:
                shared = await self.share("placements", Placements)
            self._placer = self._placer or Placer(shared)
        return self._placer

    async def _remove(self, backend: "RayBackend") -> None:
        """End the engines of a backend, unless another one here, or another server, uses them.

        The cluster runs what was asked for last. If that is what ends here, the one before it,
        which answers still, asks again: its options may be back after others that were wrong.
        """
        using = self._backends[backend.name]
        using.remove(backend)
        if using:
            await using[-1].ask_again()
        elif not self._settings.shared:
            from enginebay_cluster.ray.deployment import remove

            await asyncio.to_thread(remove, backend.name)

    async def share(self, name: str, create: Callable[[], Any]) -> SharedObject:
        await self.connect()
        from enginebay_cluster.ray.shared import SharedActor

        return await asyncio.to_thread(SharedActor, name, create)

    async def status(self) -> ClusterStatus:
        await self.connect()
        from enginebay_cluster.ray.status import status

        return await status()

    async def remove(self, model: str | None = None) -> Sequence[str]:
        await self.connect()
        from enginebay_cluster.ray.deployment import remove, remove_all
        from enginebay_cluster.ray.shared import end_all

        if model is not None:
            await asyncio.to_thread(remove, model)
            return [model]
        models = await asyncio.to_thread(remove_all)
        await asyncio.to_thread(end_all)
        return models

    async def close(self) -> None:
        if self._placer:
            self._placer.close()

    def node_command(self, node: NodeSettings) -> NodeCommand:
        if missing := self.missing():
            raise ClusterError(missing)
        return node_command(self._settings, node)


def _failed(future: asyncio.Future[None]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)
