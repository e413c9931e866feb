"""A KV cache that grows with use: a larger context takes the place of the one before."""

import logging
from collections.abc import Sequence
from time import perf_counter

from enginebay import BackendUnavailableError, free_ram
from enginebay_llamacpp.adapters import LoadedLora
from enginebay_llamacpp.cache import CachePlan, CacheSize
from enginebay_llamacpp.context import Context, NoRoomError
from enginebay_llamacpp.model import Model
from enginebay_llamacpp.options import LlamaCppOptions

logger = logging.getLogger(__name__)


class GrowingCache:
    """The context of a model, of the size that its sequences need.

    llama.cpp cannot enlarge a context. So a larger one is made, the sequences are copied into it
    bit by bit, and the old one is freed. Both exist for a moment.
    """

    def __init__(
        self,
        model: Model,
        options: LlamaCppOptions,
        plan: CachePlan,
        *,
        gpu: bool,
        at_once: int = 0,
    ) -> None:
        """`at_once`: as for `Context`."""
        self.plan = plan
        self._model = model
        self._options = options
        self._gpu = gpu
        self._at_once = at_once
        self._loras: Sequence[LoadedLora] = ()
        self.context = self._make(plan.first())
        """The present context; `make_room` may replace it."""

    def make_room(
        self, lengths: Sequence[int], held: Sequence[int], expected: Sequence[int] = ()
    ) -> None:
        """Make sequences of these lengths fit, which hold `held` tokens now.

        If it grows, it also makes room for the `expected` lengths, if there is memory.
        `NoRoomError`, and no change, if there is no memory.
        """
        if self.context.size.holds(lengths):
            return
        for wanted in (expected or lengths, lengths):
            size = self.plan.size_for(wanted)
            if size.holds(lengths) and self.plan.bytes(size) <= free_ram():
                return self._grow(size, held)
        logger.warning(
            "%s: no memory for a KV cache larger than %d tokens",
            self._model.path,
            self.context.tokens,
        )
        raise NoRoomError

    def set_loras(self, loras: Sequence[LoadedLora]) -> None:
        """As `Context.set_loras`, for every context to come, too."""
        self.context.set_loras(loras)
        self._loras = loras

    def close(self) -> None:
        """Free the cache."""
        self.context.close()

    def _make(self, size: CacheSize) -> Context:
        return Context(self._model, self._options, size, gpu=self._gpu, at_once=self._at_once)

    def _grow(self, size: CacheSize, held: Sequence[int]) -> None:
        began = perf_counter()
        old = self.context
        try:
            new = self._make(size)
        except BackendUnavailableError as error:
            logger.warning("%s", error.message)
            raise NoRoomError from error
        # From here on a failure leaves an empty cache, and everything is computed again.
        self.context = new
        try:
            new.set_loras(self._loras)
            new.take(old, held)
        finally:
            old.close()
        logger.info(
            "%s: the KV cache has grown from %d to %d tokens in %.2f s",
            self._model.path.name,
            old.tokens,
            new.tokens,
            perf_counter() - began,
        )
