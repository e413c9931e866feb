"""Which engines of a model can answer, and why there is none."""

import asyncio
from collections.abc import Collection

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from enginebay import BackendUnavailableError, ModelInfo, ReportBatchSize, ReportProgress
from enginebay_cluster.contract import Placement
from enginebay_cluster.ray.deployment import Trouble, lacking, trouble
from enginebay_cluster.ray.links import Link, Links, first_line

STARTING = "the cluster is starting one"

_LOOK_EVERY = 1.0
"""Seconds between two looks at engines that are being started."""

_NODES_COME = 10
"""How often there is looked for a node that could run an engine: nodes start beside servers."""


class Roster:
    """The engines of a model that `links` has links to. On one event loop.

    Engines of other versions than this one are on their way out, or another server has begun to
    replace these: they are asked only where there are no others. `report_batch_size` is told how
    many choices all of them compute at once, from the first `start` on.
    """

    def __init__(
        self,
        model: str,
        placement: Placement,
        version: str,
        report_batch_size: ReportBatchSize,
    ) -> None:
        self._model = model
        self._placement = placement
        self._version = version
        self._report_batch_size = report_batch_size
        self._links: Links | None = None
        self._changed = asyncio.Event()
        self._started = False
        self._trouble = STARTING
        self._looking: asyncio.Task[None] | None = None

    def use(self, links: Links) -> None:
        """These are its engines' links."""
        self._links = links

    def ready(self) -> list[Link]:
        """Those that take requests of this server, even if they cannot answer for now."""
        return [link for link in self._links.all() if link.ready] if self._links else []

    def able(self) -> list[Link]:
        """Those that can answer."""
        able = [link for link in self.ready() if not link.unavailable]
        own = [link for link in able if link.hello and link.hello.version == self._version]
        return own or able

    def require(self, tried: Collection[str]) -> list[Link]:
        """Those that can answer and were not tried. `BackendUnavailableError` if there is none."""
        left = [link for link in self.able() if link.replica not in tried]
        if not left:
            reason = self.unavailable or "the engine that was to answer is gone"
            raise BackendUnavailableError(f"{reason}; try again soon")
        return left

    @property
    def unavailable(self) -> str | None:
        """Why none can answer; None if one can, or before `start` has returned."""
        if not self._started or self.able():
            return None
        reasons = {link.unavailable for link in self.ready() if link.unavailable}
        return "; ".join(sorted(reasons)) or f"none of its engines runs: {self._trouble}"

    @property
    def batch_size(self) -> int | None:
        """The choices that all of them compute at once; None if one does not say."""
        sizes = [link.hello.info.max_batch_size for link in self.able() if link.hello]
        known = [size for size in sizes if size]
        return sum(known) if len(known) == len(sizes) and known else None

    async def require_node(self, report_progress: ReportProgress) -> None:
        """Return when there is a node that could run an engine: what is free there is not asked.

        `BackendUnavailableError`, with what is missing, if none comes.
        """
        for _ in range(_NODES_COME):
            try:
                missing = await asyncio.to_thread(lacking, self._placement)
            except RayError as error:
                missing = f"the cluster does not answer: {first_line(error)}"
            if not missing:
                return
            report_progress(missing, 0.0)
            await asyncio.sleep(_LOOK_EVERY)
        raise BackendUnavailableError(missing)

    async def start(self, report_progress: ReportProgress) -> ModelInfo:
        """What the first engine of this version says of the model, as soon as there is one.

        `BackendUnavailableError`, with what the cluster says, if none can be started.
        """
        while True:
            self._changed.clear()
            for link in self.ready():
                if link.hello and link.hello.version == self._version:
                    self._started = True
                    return link.hello.info
            try:
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._changed.wait()
            except TimeoutError:
                told = await self._told_by_the_cluster()
                if told.failed:
                    reason = f"its engines do not start: {told.said}"
                    raise BackendUnavailableError(reason) from None
                report_progress(told.said or STARTING, 0.0)

    def changed(self) -> None:
        """Engines have come, gone, or become unable to answer."""
        self._changed.set()
        if not self._started:
            return
        if self.able():
            self._report_batch_size(self.batch_size)
        elif self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())

    def end(self) -> None:
        """Look no more."""
        if self._looking:
            self._looking.cancel()

    async def _look(self) -> None:
        """While there is no engine, find out why."""
        while not self.able():
            self._trouble = (await self._told_by_the_cluster()).said or STARTING
            await asyncio.sleep(_LOOK_EVERY)

    async def _told_by_the_cluster(self) -> Trouble:
        try:
            return await asyncio.to_thread(trouble, self._model, self._placement)
        except (RayError, RayServeException) as error:
            return Trouble(f"the cluster does not answer: {first_line(error)}")
