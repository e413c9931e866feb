"""`POST /v1/completions`."""

from typing import cast

from fastapi import APIRouter, Request, Response

from core.api.params import (
    check_prompt,
    choose_sampling,
    generating_model,
    generation_requests,
    request_id,
    tokenize_prompt,
)
from core.api.respond import respond
from core.chat.collector import Collector
from core.chat.compose_text import TextComposer
from core.generation import Generation
from core.models import LoadedModel
from core.schemas.completions import Completion, CompletionRequest
from core.schemas.prompts import listed

router = APIRouter(tags=["completions"])


@router.post("/completions", response_model=Completion)
async def create_completion(body: CompletionRequest, http: Request) -> Response:
    """Continue one prompt or several, as text or token ids, whole or as server-sent events."""
    model = generating_model(http, body.model)
    sampling, headers = choose_sampling(http, body, model, logprobs=body.logprobs)
    prompts = [
        await _token_ids(prompt, model, body.add_bos_token)
        for prompt in listed(body.prompt, "prompt")
    ]
    base = request_id(http)
    id = f"cmpl-{base}"
    generation = Generation(
        http.app.state.plugins,
        model,
        generation_requests(prompts, body, model, sampling, id),
        Collector,
    )
    composer = TextComposer(id, model.name, generation.choices, logprobs=body.logprobs)
    return await respond(http, body, generation, composer, {"X-Request-Id": base, **headers})


async def _token_ids(prompt: str | list[int], model: LoadedModel, add_bos: bool) -> list[int]:
    if not isinstance(prompt, str):
        check_prompt(model, prompt, "prompt")
        return prompt
    bos = model.info.special_tokens.get("bos_token")
    written = bool(bos) and prompt.startswith(cast(str, bos))
    return await tokenize_prompt(
        model, prompt, add_special_tokens=add_bos and not written, param="prompt"
    )
