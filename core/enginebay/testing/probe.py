"""What the checks of `check_backend` are made of."""

import itertools
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from enginebay.chat.answer.parts import text_of
from enginebay.contract.backend import Backend
from enginebay.contract.chat import Chat
from enginebay.contract.engine import Engine
from enginebay.contract.errors import ServingError
from enginebay.contract.sampling_params import SamplingParams
from enginebay.contract.types import (
    ContentDelta,
    Delta,
    GenerationRequest,
    ModelInfo,
    Part,
    TokenCounts,
)

GREEDY = SamplingParams(temperature=0.0)
_PARAMS = frozenset(SamplingParams.__dataclass_fields__)


class BrokenPromiseError(AssertionError):
    """A backend does not keep the contract; the message says how."""


def expect(kept: bool, promise: int, message: str) -> None:
    """Raise unless `kept`."""
    if not kept:
        raise BrokenPromiseError(f"promise {promise}: {message}")


class WatchedEngine:
    """Stands in for an engine and remembers what a backend's user cannot see."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.info = engine.info
        self.aborted: set[str] = set()
        self.spoke_after_abort: set[str] = set()
        self.spoke_to_nobody: set[tuple[str, int]] = set()
        self._choices: dict[str, set[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def add_request(self, request: GenerationRequest) -> None:
        """Pass on, and note which choices may be heard of."""
        self._choices[request.request_id] = set(range(request.n))
        self._engine.add_request(request)

    def step(self) -> Iterable[tuple[str, Delta | ServingError]]:
        """Pass on, watching for requests that were aborted before this step, and ended choices."""
        for request_id, item in self._engine.step():
            if request_id in self.aborted:
                self.spoke_after_abort.add(request_id)
            elif isinstance(item, Delta):
                self._watch(request_id, item)
            yield request_id, item

    def _watch(self, request_id: str, delta: Delta) -> None:
        choices = self._choices.get(request_id, set())
        if delta.index not in choices:
            self.spoke_to_nobody.add((request_id, delta.index))
        elif delta.finish_reason:
            choices.remove(delta.index)

    def abort_request(self, request_id: str) -> None:
        """Pass on, and note that nothing more may be heard of it."""
        self._engine.abort_request(request_id)
        self.aborted.add(request_id)


@dataclass
class Choice:
    """Everything one choice gave."""

    deltas: list[Delta] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text; of a chat its content."""
        content = (part.text for part in self.parts if isinstance(part, ContentDelta))
        return "".join(delta.text for delta in self.deltas) + "".join(content)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts of a chat."""
        return tuple(itertools.chain.from_iterable(delta.parts for delta in self.deltas))

    @property
    def said(self) -> tuple[tuple[int, ...], tuple[tuple[type[Part], str], ...]]:
        """What can be compared with other choices: tokens, or all text of parts and its kind."""
        kinds = itertools.groupby(self.parts, type)
        texts = ((kind, "".join(map(text_of, parts))) for kind, parts in kinds)
        return self.token_ids, tuple(texts)

    @property
    def usage(self) -> TokenCounts | None:
        """The last reported usage."""
        return next((delta.usage for delta in reversed(self.deltas) if delta.usage), None)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens sampled, an end-of-sequence token included."""
        return tuple(itertools.chain.from_iterable(delta.token_ids for delta in self.deltas))

    @property
    def last(self) -> Delta:
        """The delta that should have the `finish_reason`."""
        return self.deltas[-1]


class Probe:
    """A started backend and a prompt to try it with."""

    def __init__(
        self,
        backend: Backend,
        info: ModelInfo,
        watched: WatchedEngine | None,
        prompt: str,
        max_tokens: int,
    ) -> None:
        self.backend = backend
        self.info = info
        self.watched = watched
        self.max_tokens = max_tokens
        self._prompt = prompt
        self._numbers = itertools.count()

    def supports(self, *names: str) -> bool:
        """Whether the backend claims to honour these sampling params."""
        return not self.info.unsupported & set(names)

    async def request(
        self, sampling: SamplingParams = GREEDY, *, n: int = 1, prompt: str | None = None
    ) -> GenerationRequest:
        """A request with an id of its own, for `max_tokens` tokens unless it says otherwise."""
        prompt = prompt or self._prompt
        chat, token_ids = None, list[int]()
        if self.info.chats:
            chat = Chat(messages=({"role": "user", "content": prompt},), chosen_params=_PARAMS)
        else:
            token_ids = await self.backend.tokenize(prompt, add_special_tokens=True)
        if sampling.max_tokens is None:
            sampling = replace(sampling, max_tokens=self.max_tokens)
        return GenerationRequest(
            request_id=f"check-{next(self._numbers)}",
            prompt_token_ids=tuple(token_ids),
            sampling=sampling,
            n=n,
            chat=chat,
        )

    async def run(self, request: GenerationRequest) -> list[Choice]:
        """Run a request to its end."""
        choices = [Choice() for _ in range(request.n)]
        async with aclosing(self.backend.generate(request)) as deltas:
            async for delta in deltas:
                expect(0 <= delta.index < request.n, 1, f"there is no choice {delta.index}")
                choices[delta.index].deltas.append(delta)
        return choices

    async def generate(self, sampling: SamplingParams = GREEDY) -> Choice:
        """Run one choice to its end."""
        choice = (await self.run(await self.request(sampling)))[0]
        expect(bool(choice.deltas), 1, "a request ended without a single delta")
        return choice
