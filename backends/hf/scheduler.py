"""Which requests wait, and whether the next step prefills one of them."""

from collections import deque
from itertools import accumulate

from enginebay import GenerationRequest, QueueFullError


class Scheduler:
    """First come, first served; a request needs a row for each of its choices.

    A prompt is prefilled alone, and between two prefills the running rows move on by a token, so
    newcomers never hold up the others for longer than one prompt takes.
    """

    def __init__(self, *, max_rows: int, max_waiting: int) -> None:
        self._max_rows = max_rows
        self._max_waiting = max_waiting
        self._waiting: deque[GenerationRequest] = deque()
        self._prefilled_last = False

    def add(self, request: GenerationRequest, *, running: int) -> None:
        """Queue a request beside `running` rows. `QueueFullError` if too many wait already."""
        if self._max_waiting:
            rows = accumulate((r.n for r in (*self._waiting, request)), initial=running)
            must_wait = sum(taken > self._max_rows for taken in rows)
            if must_wait > self._max_waiting:
                waiting = f"{must_wait - 1} requests are waiting already"
                raise QueueFullError(f"{waiting}; try again later")
        self._waiting.append(request)

    def next_prefill(self, *, running: int) -> GenerationRequest | None:
        """The request that this step prefills; None for a step that decodes."""
        may_prefill = not (running and self._prefilled_last)
        fits = bool(self._waiting) and running + self._waiting[0].n <= self._max_rows
        self._prefilled_last = may_prefill and fits
        return self._waiting.popleft() if self._prefilled_last else None

    def abort(self, request_id: str) -> None:
        """Forget a request that waits."""
        self._waiting = deque(r for r in self._waiting if r.request_id != request_id)
