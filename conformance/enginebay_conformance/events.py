"""Streams whose events have names, as those of Responses, Messages and KoboldCpp."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import httpx2

from enginebay_conformance.endpoint import Endpoint, Json, answered
from enginebay_conformance.expect import NotShown, Unsupported, expect


@dataclass(frozen=True)
class Event:
    """One event: its name, and its data, which is JSON."""

    name: str
    data: Json

    @property
    def type(self) -> str:
        """What the data says it is."""
        return str(self.data.get("type"))


def ask(
    server: Endpoint, path: str, body: Json, headers: Mapping[str, str] | None = None
) -> httpx2.Response:
    """The answer to a body; `NotShown` if the server has no such route."""
    response = server.post(path, body, headers)
    if response.status_code in (404, 405) and "model" not in response.text:
        raise NotShown(f"the server has no {path}")
    return response


def asked(
    server: Endpoint, path: str, body: Json, headers: Mapping[str, str] | None = None
) -> Json:
    """The object that answers a body."""
    answer: Json = answered(ask(server, path, body, headers)).json()
    return answer


def asked_or_refused(server: Endpoint, path: str, body: Json) -> Json:
    """The object that answers a body; `Unsupported` if that is refused with a 400."""
    response = ask(server, path, body)
    if response.status_code == 400:
        raise Unsupported(f"the server says: {response.text[:200]}")
    answer: Json = answered(response).json()
    return answer


def events(response: httpx2.Response) -> list[Event]:
    """The events of a stream; `Mismatch` unless each has a name and JSON. Comments are left out."""
    text = answered(response).text.replace("\r\n", "\n")
    found = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        expect(len(names) == 1 and len(data) == 1, f"an event is {block!r}")
        try:
            found.append(Event(names[0], json.loads(data[0])))
        except ValueError:
            expect(False, f"an event is no JSON: {data[0]!r}")
    return found
