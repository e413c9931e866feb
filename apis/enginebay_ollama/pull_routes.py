"""`POST /api/pull`, and routes of Ollama's that change models, of which this server has none."""

import hashlib
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request, Response

from enginebay.chat.answer.composer import dumped
from enginebay.chat.schemas.read_body import Sent
from enginebay.contract.errors import ModelNotFoundError, ServingError
from enginebay.models.downloads import Wanted
from enginebay.server.access.auth import reach
from enginebay.server.http import sse
from enginebay.server.http.body_route import JsonRoute
from enginebay.server.http.framing import NDJSON_TYPE
from enginebay.server.http.headers import unsupported_header
from enginebay.server.http.respond import or_client_leaves
from enginebay.server.http.track import running_request
from enginebay.server.services import services
from enginebay_ollama.answer_bodies import ErrorLine, PullStatus
from enginebay_ollama.names import known_name
from enginebay_ollama.request_bodies import OllamaPull

router = APIRouter(tags=["ollama"], route_class=JsonRoute)

_HUB = re.compile(r"h(?:ugging)?f(?:ace)?\.co/")
"""What names on the hub begin with: its short name, or its long one."""


@router.post("/pull", response_model=PullStatus)
async def pull(body: Sent[OllamaPull], http: Request) -> Response:
    """Say that a model is there; for admins, download one whose name begins with `hf.co/`."""
    headers = unsupported_header(http, body.unknown_keys)
    running = running_request(http)
    statuses = _statuses(http, body.asked_model)
    if not body.stream:
        with running.interruptible():
            answer = await or_client_leaves(http, _last(statuses))
        return Response(dumped(answer), media_type="application/json", headers=headers)
    lines = sse.of_work(running, statuses, write=lambda body: dumped(body) + b"\n", fail=_failed)
    first = await or_client_leaves(http, anext(lines))
    return sse.EventStreamResponse(
        lines,
        first=first,
        ping_interval=services(http).config.server.ping_interval,
        ping=None,
        headers=headers,
        media_type=NDJSON_TYPE,
    )


def _failed(error: ServingError) -> bytes:
    return dumped(ErrorLine(error=error.shown_message)) + b"\n"


async def _last(statuses: AsyncGenerator[PullStatus, None]) -> PullStatus:
    async with aclosing(statuses):
        async for status in statuses:
            last = status
    return last


async def _statuses(http: Request, name: str) -> AsyncGenerator[PullStatus, None]:
    repository = await _to_download(http, name)
    if repository is None:
        yield PullStatus(status="pulling manifest")
    else:
        async with aclosing(_downloaded(http, repository)) as downloaded:
            async for status in downloaded:
                yield status
    yield PullStatus(status="success")


async def _to_download(http: Request, name: str) -> str | None:
    """The repository, maybe with a tag; None for a model that is there."""
    try:
        await known_name(http, name)
    except ModelNotFoundError as error:
        hub = _HUB.match(name)
        if hub and reach(http, "download_model") == "all":
            return name[hub.end() :]
        error.message += (
            "; models of the config are there without being pulled, and an admin can download "
            "others by names such as huggingface.co/OWNER/REPOSITORY"
        )
        raise
    return None


async def _downloaded(http: Request, name: str) -> AsyncGenerator[PullStatus, None]:
    """One model of a repository: the tag is its quant, as in Ollama."""
    repository, _, tag = name.partition(":")
    wanted = Wanted(repo_id=repository, quant="" if tag == "latest" else tag)
    digest = f"sha256:{hashlib.sha256(name.encode(errors='replace')).hexdigest()}"
    async with aclosing(services(http).downloads.run(wanted)) as progress:
        async for each in progress:
            yield PullStatus(
                status="waiting for another download" if each.waiting else f"pulling {each.file}",
                digest=digest,
                total=each.total,
                completed=each.completed,
            )


@router.delete("/delete", include_in_schema=False)
async def delete() -> None:
    """There is nothing to delete from."""
    raise ModelNotFoundError(
        "models are not deleted here: take it out of the config, or delete its files"
    )


@router.post("/copy", include_in_schema=False)
async def copy() -> None:
    """Names are the config's."""
    raise ModelNotFoundError(
        "models are not copied here: give it another name as one of its `aliases`"
    )


@router.post("/create", include_in_schema=False)
async def create() -> None:
    """Models are the config's."""
    raise ModelNotFoundError(
        "models are not created here: add an entry under `models` in the config, with `like` for "
        "one that differs only in its settings"
    )


@router.post("/push", include_in_schema=False)
async def push() -> None:
    """Nothing leaves this server."""
    raise ModelNotFoundError("models are not pushed from here: use the tools of the hub")


@router.head("/blobs/{digest}", include_in_schema=False)
@router.post("/blobs/{digest}", include_in_schema=False)
async def blobs(digest: str) -> None:
    """Files are not taken."""
    raise ModelNotFoundError(
        "this server takes no files: put them into its `model_dir`, or pull from a hub"
    )
