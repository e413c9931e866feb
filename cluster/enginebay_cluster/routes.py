"""`GET /v1/cluster`: the machines of the cluster and the engines on them."""

import asyncio
import time
from collections.abc import Callable
from typing import ClassVar

from fastapi import APIRouter, Depends, Request

from enginebay.contract.errors import ServingError
from enginebay.server.access.auth import require_admin
from enginebay.server.http.respond import or_client_leaves
from enginebay_cluster.bodies import ClusterBody
from enginebay_cluster.contract import Cluster, ClusterStatus

_FRESH = 1.0
"""Seconds for which an answer of the cluster, or its failure, is given to others, too."""


class NoClusterError(ServingError):
    """This server is in no cluster."""

    status = 404
    type = "invalid_request_error"
    code: ClassVar[str | None] = "no_cluster"


class RecentStatus:
    """The status of a cluster, asked for at most once at a time, and not again within a second.

    Whoever asks meanwhile gets the same answer, or the same error. On one event loop.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._asking: asyncio.Task[ClusterStatus] | None = None
        self._asked = 0.0

    async def get(self) -> ClusterStatus:
        """The status; raises what the cluster raises. Cancelling it leaves others their answer."""
        if self._asking is None or self._is_old(self._asking):
            self._asking = asyncio.create_task(self._ask())
            self._asking.add_done_callback(_look_at_error)
        return await asyncio.shield(self._asking)

    def _is_old(self, asking: asyncio.Task[ClusterStatus]) -> bool:
        return asking.done() and self._clock() - self._asked >= _FRESH

    async def _ask(self) -> ClusterStatus:
        try:
            return await self._cluster.status()
        finally:
            self._asked = self._clock()


def _look_at_error(asking: asyncio.Task[ClusterStatus]) -> None:
    """So that nothing is logged when everybody who waited for it has left."""
    if not asking.cancelled():
        asking.exception()


def cluster_router(cluster: Cluster | None) -> APIRouter:
    """The route, which says that there is no cluster if there is none."""
    recent = RecentStatus(cluster) if cluster else None
    router = APIRouter(tags=["cluster"], dependencies=[Depends(require_admin)])

    @router.get("/cluster")
    async def cluster_status(http: Request) -> ClusterBody:
        """The machines of the cluster, free CPUs and GPUs, and the engines of every model.

        404 if the server is in no cluster, 503 with what to do if that cannot be reached.
        """
        if recent is None:
            raise NoClusterError(
                "this server is in no cluster; to have one, add the section `cluster` to the "
                "config and restart the server"
            )
        return ClusterBody.of(await or_client_leaves(http, recent.get()))

    return router
