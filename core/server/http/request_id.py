"""The id of a request: the client's where it sends one, else a UUID."""

import re

from fastapi import Request

from core.chat.answer.running import RunningRequest
from core.chat.schemas.generation_request import GenerationBody
from core.server.http.track import running_request
from core.server.services import services

_REQUEST_ID = re.compile(r"[!-~]{1,128}")


def request_id(http: Request, body: GenerationBody | None = None) -> str:
    """The client's `X-Request-Id` if it is a plain short one, else a UUID.

    Where the config says so, the body's `request_id` or `user` come first.
    """
    source = services(http).config.server.request_id_from
    in_body = getattr(body, source) if body and source != "header" else None
    for sent in (in_body, http.headers.get("x-request-id")):
        if sent and _REQUEST_ID.fullmatch(sent):
            running_request(http).id = str(sent)
            break
    return running_request(http).id


def tracked(http: Request, body: GenerationBody, prefix: str) -> RunningRequest:
    """This request, with the ids by which others may refer to it while it runs.

    `prefix`: what the id of its answer begins with.
    """
    running = running_request(http)
    running.id = request_id(http, body)
    running.answer_id = f"{prefix}-{running.id}"
    running.stream = bool(body.stream)
    return running
