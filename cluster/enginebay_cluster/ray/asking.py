"""Calls to the backends of a model's replicas, beside the generation of answers."""

import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from ray.serve.handle import DeploymentHandle

from enginebay import Backend, EngineDeadError, ServingError
from enginebay_cluster.ray.links import LOST, Links, first_line

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

TRIES = 3
"""How many engines are tried for what may be done again."""


class Asking:
    """Calls by `handle`, whose answers `links` wait for. `candidates` are the replicas that can
    answer, without those given to it; it raises if there is none.
    """

    def __init__(
        self,
        handle: DeploymentHandle[Any],
        links: Links,
        candidates: Callable[[set[str]], Sequence[str]],
    ) -> None:
        self._handle = handle
        self._links = links
        self._candidates = candidates
        self._turns = itertools.count()

    async def any(
        self,
        method: Callable[Concatenate[Backend, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """What a method of any engine's backend returns; if one is lost, another one is asked."""
        tried: set[str] = set()
        while True:
            able = self._candidates(tried)
            replica = able[next(self._turns) % len(able)]
            try:
                found = await self.one(replica, "call", method.__name__, *args, **kwargs)
                return cast(T, found)
            except EngineDeadError:
                tried.add(replica)
                if len(tried) == TRIES:
                    raise

    async def one(self, replica: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """What a method of this replica returns.

        Raises the `ServingError` that it returns, `EngineDeadError` if the replica is lost.
        """
        response = getattr(self._handle, method).remote(*args, replica=replica, **kwargs)
        try:
            found = await self._links.answer(replica, response)
        except LOST as error:
            logger.warning("replica %s: %s", replica, first_line(error))
            raise EngineDeadError("the engine that was asked is gone") from error
        if isinstance(found, ServingError):
            raise found
        return found
