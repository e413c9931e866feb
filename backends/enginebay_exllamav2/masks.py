"""Masks of constraints, filled while the GPU computes."""

from __future__ import annotations

from threading import Lock
from typing import Any

from enginebay import Constraint, GrammarCompiler, Mask, fill_masks
from enginebay_exllamav2.library import generator


class MaskFilter(generator.filters.ExLlamaV2Filter):  # type: ignore[misc]
    """Has the library prepare a choice's next mask on another thread once a pass is under way.

    It belongs to a choice, not to a job: the constraint must not advance while its mask is being
    filled. `lock` is held meanwhile, since a compiler fills from one thread at a time.
    """

    def __init__(
        self, model: Any, compiler: GrammarCompiler, constraint: Constraint, lock: Lock
    ) -> None:
        super().__init__(model.model, model.tokenizer)
        self._compiler = compiler
        self._constraint = constraint
        self._lock = lock
        self._error: Exception | None = None

    def take(self) -> Mask:
        """The mask for the next token; waits for it."""
        self.get_next(mask=True)
        if self._error is not None:
            raise self._error
        assert self._constraint.mask is not None
        return self._constraint.mask

    def drop(self) -> None:
        """Discard the mask for the next token."""
        self.background_drop()

    # What the library calls.

    def begin(self, prefix_str: str) -> None:
        """Nothing: the constraint knows its start."""

    def feed(self, token: Any) -> None:
        """The completion goes on with the constraint."""

    def use_background_worker(self) -> bool:
        """Whether the library prepares masks on a thread of its own."""
        return True

    def can_mask_logits(self) -> bool:
        """Whether there are masks, not lists of tokens."""
        return True

    def prepare_logit_mask(self) -> bool:
        """Fill the mask; what goes wrong is kept for `take`."""
        try:
            with self._lock:
                fill_masks(self._compiler, [self._constraint])
        except Exception as error:
            self._error = error
        return True
