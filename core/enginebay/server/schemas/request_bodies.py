"""Bodies of `/v1/requests`."""

from typing import Literal

from pydantic import BaseModel


class RequestCard(BaseModel):
    """One request in progress.

    `id`: that of its answer, as far as it has one. `key`: the name of the API key it came with.
    `position`: how many are ahead of it in the queue. Tokens are None until they
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
    """The requests that one may see, the oldest first."""

    object: Literal["list"] = "list"
    data: list[RequestCard]


class FrontRequestCard(RequestCard):
    """The same, and at which of several servers it is: its machine and port."""

    front: str


class FrontRequestList(BaseModel):
    """The requests of all servers that share their limits, the oldest first.

    `unanswered`: servers that did not say in time what they have. `problem`: why the others could
    not be asked at all.
    """

    object: Literal["list"] = "list"
    data: list[FrontRequestCard]
    unanswered: list[str]
    problem: str | None


class CancelledRequest(BaseModel):
    """The request or answer `id` is being cancelled."""

    id: str
    object: Literal["request"] = "request"
    cancelled: Literal[True] = True


class EndedReasoning(BaseModel):
    """The thought of so many choices of the request or answer `id` was ended."""

    id: str
    object: Literal["request.reasoning"] = "request.reasoning"
    ended: int
