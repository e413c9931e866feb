"""What tests of KoboldCpp's API share."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import httpx2

from enginebay import Delta, GenerationRequest
from enginebay.testing import ScriptedEngine
from tests.support import InlineBackend

GENERATE = "/api/v1/generate"
STREAM = "/api/extra/generate/stream"

Json = dict[str, Any]


class Recording(InlineBackend):
    """Says "ok", and keeps what it was asked for."""

    def __init__(self, **engine: Any) -> None:
        super().__init__(ScriptedEngine(["o", "k"], **engine))
        self.asked: list[GenerationRequest] = []

    async def generate(self, request: GenerationRequest) -> Any:
        self.asked.append(request)
        async for delta in super().generate(request):
            assert isinstance(delta, Delta)
            yield delta


def events(lines: Iterable[str]) -> Iterator[Json]:
    """The events of a stream, which are all of one name and all JSON."""
    name = ""
    for line in lines:
        field, _, value = line.partition(": ")
        match field:
            case "event":
                name = value
            case "data":
                assert name == "message"
                yield json.loads(value)
                name = ""
            case _:
                assert not line or line.startswith(":")


def text_of(response: httpx2.Response) -> str:
    assert response.status_code == 200, response.text
    [result] = response.json()["results"]
    text: str = result["text"]
    return text


def check_error(response: httpx2.Response, status: int = 400) -> Json:
    """The error of a response, which is KoboldCpp's."""
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"detail"}
    detail: Json = body["detail"]
    assert detail.keys() == {"msg", "type"}
    assert detail["msg"]
    return detail
