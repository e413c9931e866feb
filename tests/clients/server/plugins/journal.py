"""Writes a line for every request that begins and ends: what the model was asked, how it ended."""

import json
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from enginebay import Backend, Delta, GenerationRequest, hookimpl

JOURNAL = Path(os.environ["CLIENTS_JOURNAL"])


@hookimpl(wrapper=True)
def generate(backend: Backend, request: GenerationRequest) -> Any:
    stream = yield
    return noted(stream, backend, request)


async def noted(
    stream: AsyncGenerator[Delta, None], backend: Backend, request: GenerationRequest
) -> AsyncGenerator[Delta, None]:
    prompt = await backend.detokenize(request.prompt_token_ids)
    sampling = request.sampling
    write(
        event="begin",
        id=request.request_id,
        prompt=prompt,
        media=[span.media.type for span in request.media],
        n=request.n,
        max_tokens=sampling.max_tokens,
        logprobs=sampling.logprobs,
        temperature=sampling.temperature,
    )
    outcome, tokens = "closed", 0
    try:
        async with aclosing(stream):
            async for delta in stream:
                tokens += len(delta.token_ids)
                yield delta
        outcome = "finished"
    except Exception as error:
        outcome = f"failed: {error}"
        raise
    finally:
        write(event="end", id=request.request_id, outcome=outcome, tokens=tokens)


def write(**entry: object) -> None:
    with JOURNAL.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
