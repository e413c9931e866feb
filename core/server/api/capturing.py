"""Writing requests down, where the config wants that."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from fastapi import Request

from core.chat.answer.capture import Capture, Captures
from core.chat.answer.recipe import CollectorRecipe
from core.chat.schemas.generation_request import GenerationBody
from core.contract.types import GenerationRequest
from core.models.entry import LoadedModel
from core.server.api.served import running_request


def begin_capture(
    http: Request,
    body: GenerationBody,
    model: LoadedModel,
    requests: Sequence[GenerationRequest],
    recipe: CollectorRecipe,
    shown: object,
) -> Capture | None:
    """Write down what is asked and what will be answered; None where nobody wants that.

    `shown`: the prompt as text, or messages that are handed on. Headers, and keys with them, are
    left out.
    """
    captures: Captures | None = http.app.state.captures
    if captures is None:
        return None
    sampling = asdict(requests[0].sampling)
    sampling["constraint"] = repr(requests[0].sampling.constraint)
    asked = {
        "time": datetime.now(UTC).isoformat(),
        "enginebay": http.app.version,
        "route": http.url.path,
        "model": model.name,
        "backend": model.config.backend,
        "path": model.config.path,
        "body": body.model_dump(mode="json", exclude_unset=True),
        "prompt": shown,
        "prompt_token_ids": [list(request.prompt_token_ids) for request in requests],
        "sampling": sampling,
    }
    running = running_request(http)
    return captures.begin(running.answer_id or running.id, recipe, asked)
