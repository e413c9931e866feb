"""One answer of a request that generates text: its plan, its run and its form."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from core.chat.answer.composer import Composer
from core.chat.answer.generation import Generation
from core.chat.plan.request_plan import RequestPlan
from core.chat.schemas.usage_bodies import Usage, WireAnswer
from core.contract.errors import ServingError
from core.contract.types import Update

logger = logging.getLogger(__name__)

Form = TypeVar("Form")


class Answer:
    """It runs when it is read, which is once: as updates, as chunks, or whole.

    Closing what reads it aborts it. Errors are `ServingError`s, as clients may see them; what goes
    wrong up to the first token is raised before the first item. `usage_with_finish`: the usage of a
    stream comes in its last chunk that has a `finish_reason`, not in one of its own.
    """

    def __init__(
        self,
        plan: RequestPlan[Any],
        generation: Generation,
        composer: Composer,
        *,
        usage_with_finish: bool,
    ) -> None:
        self.plan = plan
        self._generation = generation
        self._composer = composer
        self._usage_with_finish = usage_with_finish

    @property
    def id(self) -> str:
        """The `id` of the answer and all its chunks."""
        return self._composer.head.id

    @property
    def usage(self) -> Usage:
        """The counts so far; complete when it has been read."""
        return self._generation.counter.usage

    async def updates(self) -> AsyncGenerator[Update, None]:
        """What each choice gains, as it arrives."""
        try:
            async with aclosing(self._generation.updates()) as updates:
                async for update in updates:
                    yield update
        except ServingError:
            raise
        except Exception as error:
            raise self._failed(error) from error

    async def whole(self) -> WireAnswer:
        """All of it, as one answer of the API."""
        return await self._whole(_as_it_is)

    async def whole_json(self) -> bytes:
        """The same as JSON."""
        return await self._whole(_json)

    async def chunks(self) -> AsyncGenerator[WireAnswer, None]:
        """All of it, as chunks of the API's streams."""
        async with aclosing(self._stream(_as_it_is)) as stream:
            async for chunks in stream:
                for chunk in chunks:
                    yield chunk

    def json_chunks(self) -> AsyncGenerator[list[bytes], None]:
        """The chunks of each update as JSON; of most, which are only text, from a template."""
        return self._stream(_json, ready_made=self._composer.ready_made)

    async def _whole(self, form: Callable[[WireAnswer], Form]) -> Form:
        try:
            async with aclosing(self._generation.updates()) as updates:
                async for update in updates:
                    self._composer.add(update)
            return form(self._composer.whole(self.usage))
        except ServingError:
            raise
        except Exception as error:
            raise self._failed(error) from error

    async def _stream(
        self,
        form: Callable[[WireAnswer], Form],
        *,
        ready_made: Callable[[Update], Form | None] = lambda _: None,
    ) -> AsyncGenerator[list[Form], None]:
        composer, include_usage = self._composer, self.plan.body.include_usage
        unfinished = self._generation.choices
        finish: WireAnswer | None = None
        try:
            async with aclosing(self._generation.updates()) as updates:
                async for update in updates:
                    if ready := ready_made(update):
                        yield [ready]
                        continue
                    chunks = list(composer.chunks(update))
                    unfinished -= update.finish_reason is not None
                    if include_usage and self._usage_with_finish and not unfinished:
                        finish = chunks.pop()
                    if chunks:
                        yield list(map(form, chunks))
            if include_usage:
                if finish is None:
                    finish = composer.usage_chunk(self.usage)
                finish.usage = self.usage
                yield [form(finish)]
        except ServingError:
            raise
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> ServingError:
        logger.error("request %s failed", self.id, exc_info=error)
        return ServingError(
            f"request {self.id} was aborted by an internal error; see the server's log"
        )


def _as_it_is(answer: WireAnswer) -> WireAnswer:
    return answer


def _json(answer: WireAnswer) -> bytes:
    return answer.model_dump_json(exclude_unset=True).encode()
