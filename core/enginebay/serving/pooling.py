"""Prompts are computed without generating text, for all requests that are answered so."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from enginebay.chat.answer.counts import Counts
from enginebay.chat.answer.running import RunningRequest
from enginebay.chat.plan.strictness import accept_ignored
from enginebay.config.schema import ServerConfig
from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.types import ModelInfo
from enginebay.models.index import FoundModel
from enginebay.models.loading.entry import ModelEntry
from enginebay.models.permissions import may_use
from enginebay.models.registry import Models
from enginebay.models.served import ServedModel
from enginebay.serving.leases import Leases

_PROMPTS_A_CALL = 64
"""Between two calls the engine serves others, and a client that leaves costs no more."""

Kind = Callable[[ModelInfo], bool]
"""Whether a model is of a kind, by what it can do."""

Prompts = Sequence[Sequence[int]]
Numbers = NDArray[np.float64]
_LARGEST = float(np.finfo(np.float32).max)
Body = TypeVar("Body", covariant=True)


@dataclass(frozen=True, slots=True)
class Pooled(Generic[Body]):
    """An answer, and the names of fields that had no effect on it."""

    body: Body
    ignored: Sequence[str] = ()


class Pooling:
    """Finds the models that such requests mean, and has their backends compute prompts."""

    def __init__(
        self, leases: Leases, models: Models, counts: Counts, server: ServerConfig
    ) -> None:
        self._leases = leases
        self._models = models
        self._counts = counts
        self._server = server

    async def find(self, running: RunningRequest, name: str | None, *kinds: Kind) -> FoundModel:
        """The model a request names, in any state, whatever it can do.

        Without a name it is one of the first of these kinds that there is, the default model
        before others; only the default model if it is not known what that can do.
        """
        found = await self._leases.find(running, name)
        if name or not found.entry.info:
            return found
        for kind in kinds:
            able = list(self._able(running, kind))
            if able:
                return found if found.entry in able else FoundModel(able[0])
        return found

    async def hold(self, running: RunningRequest, name: str | None, *kinds: Kind) -> ServedModel:
        """The same, ready to answer, and held for the request."""
        return await self._leases.hold(running, await self.find(running, name, *kinds))

    async def served(
        self,
        running: RunningRequest,
        name: str | None,
        *kinds: Kind,
        what: str,
        choice: str,
    ) -> ServedModel:
        """As `hold`; `InvalidRequestError` if it is not of the last kind.

        `what` is that in words, `choice` a model that can.
        """
        model = await self.hold(running, name, *kinds)
        if kinds[-1](model.info) and not model.adapter:
            return model
        able = ", ".join(repr(entry.name) for entry in self._able(running, kinds[-1]))
        advice = f"loaded models that can: {able}" if able else f"choose {choice}"
        raise InvalidRequestError(
            f"model {model.asked!r} does not support {what}; {advice}", param="model"
        )

    def _able(self, running: RunningRequest, kind: Kind) -> Iterator[ModelEntry]:
        for entry in self._models.all():
            if entry.info and kind(entry.info) and may_use(running.key, entry):
                yield entry

    def accept(self, ignored: Sequence[str]) -> None:
        """Log fields without effect; `UnsupportedParameterError` if the config says so."""
        accept_ignored(ignored, self._server)

    async def computed(
        self,
        running: RunningRequest,
        model: ServedModel,
        prompts: Prompts,
        params: Sequence[str],
        compute: Callable[[Prompts], Awaitable[Sequence[float | Sequence[float]]]],
        *,
        priority: int = 0,
    ) -> list[Numbers]:
        """What `compute` makes of each prompt, some prompts at a time, when it is their turn.

        `InvalidRequestError`, with its name in `params`, for one whose numbers are not finite, or
        too large for float32.
        """
        counts = self._counts.of(model.config.name)
        results: list[Numbers] = []
        with counts.working():
            for start in range(0, len(prompts), _PROMPTS_A_CALL):
                some = prompts[start : start + _PROMPTS_A_CALL]
                tokens = sum(map(len, some))
                async with running.turn(
                    model, len(some), prompt_tokens=tokens, priority=running.priority(priority)
                ):
                    with running.interruptible():
                        results += map(_numbers, await compute(some), params[start:])
                counts.progress()
                counts.prompt_tokens += tokens
        return results


def _numbers(computed: float | Sequence[float], param: str) -> Numbers:
    numbers = np.asarray(computed, np.float64)
    if not (np.abs(numbers) <= _LARGEST).all():
        raise InvalidRequestError(
            f"the model's numbers for {param} are not finite: they overflow in its number format "
            "(load it as float32), or its weights hold NaN",
            param=param,
        )
    return numbers
