"""`POST /v1/download`: models and LoRAs from a Hugging Face hub."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request, Response

from enginebay.chat.schemas.read_body import Sent
from enginebay.models.downloads import Progress
from enginebay.server.access.auth import needs
from enginebay.server.http import sse
from enginebay.server.http.body_route import BodyRoute
from enginebay.server.http.headers import unsupported_header
from enginebay.server.http.respond import or_client_leaves
from enginebay.server.http.track import running_request
from enginebay.server.schemas.download_bodies import (
    DownloadEvent,
    DownloadRequest,
    DownloadResponse,
)
from enginebay.server.services import services

router = APIRouter(
    tags=["downloads"], route_class=BodyRoute, dependencies=[needs("download_model")]
)


@router.post("/download", response_model=DownloadResponse)
async def download(body: Sent[DownloadRequest], http: Request) -> Response:
    """Download a repository into `model_dir`, or a LoRA into `lora_dir`.

    With `stream`, or if the client accepts only events, progress is streamed. Disconnecting stops
    the download; the same request resumes it.
    """
    headers = unsupported_header(http, sorted(body.model_extra or ()))
    running = running_request(http)
    downloads = services(http).downloads
    progress = downloads.run(body.wanted())
    if not (body.stream or http.headers.get("accept") == "text/event-stream"):
        with running.interruptible():
            answer = await or_client_leaves(http, _whole(progress))
        return Response(answer.model_dump_json(), media_type="application/json", headers=headers)
    events = sse.of_work(running, _events(progress))
    first = await or_client_leaves(http, anext(events))
    return sse.EventStreamResponse(
        events,
        first=first,
        ping_interval=services(http).config.server.ping_interval,
        headers=headers,
    )


async def _whole(progress: AsyncGenerator[Progress, None]) -> DownloadResponse:
    path = None
    async with aclosing(progress):
        async for each in progress:
            path = each.path
    return DownloadResponse(download_path=str(path))


async def _events(progress: AsyncGenerator[Progress, None]) -> AsyncGenerator[DownloadEvent, None]:
    async with aclosing(progress):
        async for each in progress:
            yield DownloadEvent.of(each)
