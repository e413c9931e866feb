"""Bodies of `/v1/requests`."""

from typing import Literal

from pydantic import BaseModel


class RequestCard(BaseModel):
    """One request that is being answered.

    `id`: that of its answer, as far as it has one. `key`: the name of the API key it came with.
    `position`: how many get their turn before it, while it is queued. Tokens are None until they
    are counted; `n` are the choices of all its prompts, or the texts to embed.
    """

    id: str
    object: Literal["request"] = "request"
    model: str | None
    key: str | None
    route: str
    state: Literal["received", "loading", "queued", "running"]
    position: int | None
    age_s: float
    prompt_tokens: int | None
    completion_tokens: int | None
    n: int
    stream: bool


class RequestList(BaseModel):
    """Those that one may see, the oldest first."""

    object: Literal["list"] = "list"
    data: list[RequestCard]


class CancelledRequest(BaseModel):
    """What `id` names is being ended."""

    id: str
    object: Literal["request"] = "request"
    cancelled: Literal[True] = True
