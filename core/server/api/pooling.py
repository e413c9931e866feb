"""Shared by `/v1/embeddings` and `/v1/rerank`: prompts are computed without generating text."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from fastapi import Request, Response

from core.chat.schemas.usage_bodies import PromptUsage
from core.models.served import ServedModel
from core.server.api.served import model_counts
from core.server.http.respond import or_client_leaves
from core.server.http.track import running_request

_PROMPTS_A_CALL = 64
"""Between two calls the engine serves others, and a client that leaves costs no more."""

Prompts = Sequence[Sequence[int]]
Computed = TypeVar("Computed")


class Answer(Protocol):
    """The body of an answer."""

    usage: PromptUsage

    def model_dump_json(self, *, exclude_none: bool) -> str:
        """As pydantic has it."""


async def respond(
    http: Request, model: ServedModel, work: Awaitable[Answer], headers: dict[str, str]
) -> Response:
    """The HTTP answer that `work` makes, which is cancelled when the client leaves."""
    counts = model_counts(http, model)
    with counts.working():
        answer = await or_client_leaves(http, work)
    counts.prompt_tokens += answer.usage.prompt_tokens
    return Response(
        answer.model_dump_json(exclude_none=True),
        media_type="application/json",
        headers={"X-Request-Id": running_request(http).id, **headers},
    )


async def computed(
    http: Request,
    model: ServedModel,
    prompts: Prompts,
    compute: Callable[[Prompts], Awaitable[list[Computed]]],
) -> list[Computed]:
    """What `compute` makes of each prompt, some prompts at a time, when it is their turn."""
    running, counts = running_request(http), model_counts(http, model)
    results: list[Computed] = []
    for start in range(0, len(prompts), _PROMPTS_A_CALL):
        prompts_now = prompts[start : start + _PROMPTS_A_CALL]
        async with running.turn(model, len(prompts_now), priority=running.priority()):
            with running.interruptible():
                results += await compute(prompts_now)
        counts.progress()
    return results
