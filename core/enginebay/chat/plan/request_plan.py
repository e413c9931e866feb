"""The plan of a request that generates text: engine input and how to parse the output."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from enginebay.chat.answer.compose_text import Echo
from enginebay.chat.answer.recipe import CollectorRecipe
from enginebay.chat.answer.thought_end import ThoughtEnd
from enginebay.chat.answer.time_limit import TimeLimit
from enginebay.chat.plan.params import PlannedParams
from enginebay.chat.schemas.generation_request import GenerationBody
from enginebay.contract.chat import Chat
from enginebay.contract.media import MediaSpan
from enginebay.contract.types import GenerationRequest
from enginebay.models.served import ServedModel

Body = TypeVar("Body", bound=GenerationBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPlan(Generic[Body]):
    """Made once for each request, by `Planner`; routes, captures and the log read it.

    `body`: the request with the model's overrides. `prompts`: the tokens of each, one empty prompt
    with a `chat` that is passed through. `choices`: of each prompt. `recipe`: how the text of a
    choice is parsed. `constrained_by`: the field of the body that a constraint comes from.
    `ignored`: names of fields that have no effect; `clamped`: params that were lowered, and to
    what; `cut`: tokens truncated from the beginning of prompts; `dropped`: the oldest messages of a
    chat that were left out, and are not in `body`. `shown`: each prompt as logged.
    `media`: the items of the one prompt of a chat. `predicted`: tokens of its answer that the
    client expects. `time_limit`: how long the answer may take.
    `thought_end`: how its thought can be ended by force.
    With `prompt_only` nothing is generated.
    """

    body: Body
    model: ServedModel
    params: PlannedParams
    prompts: Sequence[list[int]]
    shown: Sequence[object]
    choices: int
    recipe: CollectorRecipe
    constrained_by: str | None = None
    ignored: tuple[str, ...] = ()
    clamped: Mapping[str, int] = field(default_factory=dict)
    cut: int = 0
    dropped: int = 0
    chat: Chat | None = None
    media: tuple[MediaSpan, ...] = ()
    predicted: tuple[int, ...] = ()
    prompt_only: bool = False
    time_limit: TimeLimit | None = None
    thought_end: ThoughtEnd | None = None
    echoes: Sequence[Echo] = ()

    def requests(
        self, answer_id: str, priority: int, cache_salt: str | None
    ) -> list[GenerationRequest]:
        """One engine request per prompt. Their ids are unique even when clients reuse theirs."""
        return [
            GenerationRequest(
                request_id=f"{answer_id}-{position}-{secrets.token_hex(4)}",
                prompt_token_ids=tuple(prompt),
                sampling=self.params.params,
                n=self.choices,
                priority=priority,
                cache_salt=cache_salt,
                chat=self.chat,
                media=self.media,
                reports_prefill=self.body.reports_prefill,
                predicted_token_ids=self.predicted,
            )
            for position, prompt in enumerate(self.prompts)
        ]
