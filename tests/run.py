"""Steps an engine by hand and keeps what comes out."""

from collections.abc import Container, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from enginebay import Delta, Engine, GenerationRequest, SamplingParams, ServingError


def request(
    prompt: list[int] | tuple[int, ...],
    *,
    id: str = "r",
    n: int = 1,
    adapter: str | None = None,
    **sampling: Any,
) -> GenerationRequest:
    sampling = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, **sampling}
    return GenerationRequest(
        request_id=id,
        prompt_token_ids=tuple(prompt),
        n=n,
        adapter=adapter,
        sampling=SamplingParams(**sampling),
    )


_Result = TypeVar("_Result")


def computed(engine: Engine, answer: _Result | Future[_Result]) -> _Result:
    """The result of a call to an engine, stepped until it is done."""
    if not isinstance(answer, Future):
        return answer
    while not answer.done():
        assert list(engine.step()) == []
    return answer.result()


class Run:
    """Requests run on an engine, and what came of them, by request id and choice."""

    def __init__(self, engine: Engine, *requests: GenerationRequest) -> None:
        self.engine = engine
        self.deltas: dict[tuple[str, int], list[Delta]] = {}
        self.errors: dict[str, ServingError] = {}
        self._unfinished: set[tuple[str, int]] = set()
        for item in requests:
            self.add(item)

    def add(self, item: GenerationRequest) -> None:
        self.engine.add_request(item)
        for index in range(item.n):
            self._unfinished.add((item.request_id, index))
            self.deltas[item.request_id, index] = []

    def abort(self, request_id: str) -> None:
        self.engine.abort_request(request_id)
        self._forget(request_id)

    def steps(self, count: int) -> "Run":
        for _ in range(count):
            for request_id, delta in self.engine.step():
                if isinstance(delta, ServingError):
                    self.errors[request_id] = delta
                    self._forget(request_id)
                    continue
                key = (request_id, delta.index)
                assert key in self._unfinished, f"{key} gained something after its end"
                self.deltas[key].append(delta)
                if delta.finish_reason:
                    self._unfinished.remove(key)
        return self

    def traffic(
        self,
        arrivals: Sequence[tuple[int, GenerationRequest]],
        aborted: Container[int],
        *,
        steps: int = 2,
    ) -> "Run":
        """Requests that each come so many steps after the one before, run until all have ended
        well; those of these numbers are `aborted` when they have had so many `steps`."""
        for number, (wait, item) in enumerate(arrivals):
            self.steps(wait)
            self.add(item)
            if number in aborted:
                self.steps(steps)
                self.abort(item.request_id)
        self.finish()
        assert not self.errors
        return self

    def finish(self) -> "Run":
        for _ in range(2000):
            if not self._unfinished:
                return self
            self.steps(1)
        raise AssertionError(f"never finished: {self._unfinished}")

    def token_ids(self, id: str = "r", index: int = 0) -> list[int]:
        return [token for delta in self.deltas[id, index] for token in delta.token_ids]

    def text(self, id: str = "r", index: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas[id, index])

    def last(self, id: str = "r", index: int = 0) -> Delta:
        return self.deltas[id, index][-1]

    def _forget(self, request_id: str) -> None:
        self._unfinished = {key for key in self._unfinished if key[0] != request_id}

    def is_finished(self, id: str = "r", index: int = 0) -> bool:
        """Whether a choice has ended."""
        return (id, index) not in self._unfinished
