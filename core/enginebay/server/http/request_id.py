"""The id of a request: the client's where it sends one, else a UUID."""

from fastapi import Request

from enginebay.chat.answer.running import RunningRequest
from enginebay.chat.schemas.generation_request import GenerationBody
from enginebay.server.http.track import running_request
from enginebay.server.http.web_socket import REQUEST_ID
from enginebay.server.services import services


def request_id(http: Request, body: GenerationBody | None = None) -> str:
    """The client's `X-Request-Id`, else the body's `request_id`, if plain and short; else a UUID.

    Where the config says so, the body's `request_id` or `user` come first.
    """
    source = services(http).config.server.request_id_from
    first = getattr(body, source) if body and source != "header" else None
    in_body = body.request_id if body else None
    for sent in (first, http.headers.get("x-request-id"), in_body):
        if sent and REQUEST_ID.fullmatch(sent):
            running_request(http).id = str(sent)
            break
    return running_request(http).id


def tracked(http: Request, body: GenerationBody) -> RunningRequest:
    """This request, with the id by which others may refer to it while it runs."""
    running = running_request(http)
    running.id = request_id(http, body)
    return running
