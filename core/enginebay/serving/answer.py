"""One answer of a request that generates text: its plan, its run and its form."""

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from enginebay.chat.answer.compose_openai import Head, OpenAIComposer
from enginebay.chat.answer.composer import Composer, Frame
from enginebay.chat.answer.delta_reader import DirectSink
from enginebay.chat.answer.generation import Generation
from enginebay.chat.answer.logprobs import LogprobForm
from enginebay.chat.plan.request_plan import RequestPlan
from enginebay.chat.schemas.generation_request import GenerationBody
from enginebay.chat.schemas.usage_bodies import Usage, WireAnswer
from enginebay.contract.errors import ServingError
from enginebay.contract.types import Update
from enginebay.serving.asked import Asked, Names

logger = logging.getLogger(__name__)

WriteFrames = Callable[[list[Frame]], Iterable[bytes]]
"""Makes the pieces of a response's body of some frames, as the API's streams have them."""

Form = TypeVar("Form", bound=Composer)
Body = TypeVar("Body", bound=GenerationBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Generic[Body]):
    """A request that is ready to run: what an `Answer` and its composer are made of.

    `logprob_form`: with tokens as text, as all APIs have them where nothing else is said.
    """

    asked: Asked[Body]
    plan: RequestPlan[Body]
    generation: Generation
    head: Head
    logprob_form: LogprobForm

    @property
    def names(self) -> Names:
        """What the client calls the fields of its request."""
        return self.asked.names


class Answer(Generic[Form]):
    """It runs when it is read, which is once: as updates, as frames of a stream, or whole.

    Closing what reads it aborts it. Errors are `ServingError`s, as clients may see them. What goes
    wrong up to the first token is raised before the first item; later it is the end of the frames.
    """

    def __init__(self, planned: Planned[Any], composer: Form) -> None:
        self.plan: RequestPlan[Any] = planned.plan
        self._asked = planned.asked
        self._generation = planned.generation
        self._composer = composer

    @property
    def id(self) -> str:
        """The `id` of the answer and all its chunks."""
        return self._composer.id

    @property
    def usage(self) -> Usage:
        """The counts so far; complete when it has been read."""
        return self._generation.counter.usage

    @property
    def ignored(self) -> tuple[str, ...]:
        """The fields of the request that have no effect, as the client calls them."""
        of_plan = self._asked.names.each(self.plan.ignored)
        return tuple(dict.fromkeys((*self._asked.ignored, *of_plan)))

    @property
    def clamped(self) -> Mapping[str, int]:
        """The fields that were lowered, as the client calls them, and to what."""
        names = self._asked.names
        return {names.of(name): value for name, value in self.plan.clamped.items()}

    async def updates(self) -> AsyncGenerator[Update, None]:
        """What each choice gains, as it arrives."""
        with self._visible_errors():
            async with self._generation.updates() as updates:
                async for update in updates:
                    yield update

    async def stream(self, write: WriteFrames, end: bytes = b"") -> AsyncGenerator[bytes, None]:
        """All of it, as a stream sends it: what `write` makes of each update's frames, then of the
        last ones; `end` is behind them.
        """
        composer = self._composer
        opened = False
        try:
            with self._visible_errors():
                async with self._generation.updates() as updates:
                    async for update in updates:
                        if frames := composer.frames(update):
                            opened = True
                            for piece in write(frames):
                                yield piece
                if frames := composer.ending():
                    for piece in write(frames):
                        yield piece
        except ServingError as error:
            if not opened:
                raise
            for piece in write(composer.failed(error)):
                yield piece
        if end:
            yield end

    def send_directly(self, write: WriteFrames, sink: DirectSink[bytes]) -> None:
        """Send what comes next of the `stream` that is read through `sink`, where it can be, so
        that whoever reads it need not be woken. All before it has been sent.
        """
        composer, put = self._composer, sink.send

        def send(update: Update) -> None:
            if frames := composer.frames(update):
                for piece in write(frames):
                    put(piece)

        self._generation.send_directly(DirectSink(sink.ready, send))

    async def whole_json(self) -> bytes:
        """All of it, as one answer in JSON."""
        with self._visible_errors():
            await self._collect()
            return self._composer.whole_json()

    async def _collect(self) -> None:
        async with self._generation.updates() as updates:
            async for update in updates:
                self._composer.add(update)

    @contextmanager
    def _visible_errors(self) -> Iterator[None]:
        try:
            with self._asked.names.in_errors():
                yield
        except ServingError:
            raise
        except Exception as error:
            logger.error("request %s failed", self.id, exc_info=error)
            raise ServingError(
                f"request {self.id} was aborted by an internal error; see the server's log"
            ) from error


class OpenAIAnswer(Answer[OpenAIComposer]):
    """An answer of OpenAI's chat or completion API, also as values."""

    async def whole(self) -> WireAnswer:
        """All of it, as one answer of the API."""
        with self._visible_errors():
            await self._collect()
            return self._composer.whole()

    async def chunks(self) -> AsyncGenerator[WireAnswer, None]:
        """All of it, as chunks of the API's streams."""
        with self._visible_errors():
            async with self._generation.updates() as updates:
                async for update in updates:
                    for chunk in self._composer.sent(update):
                        yield chunk
            for chunk in self._composer.last():
                yield chunk
