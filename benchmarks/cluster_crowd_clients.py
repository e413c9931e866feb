"""What the clients of a cluster do, and what each of them saw."""

import asyncio
import json
import random
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

from benchmarks.cluster_crowd_site import KEYS, MODELS, Outage, secret
from tests.cluster.site import ADMIN
from tests.support import NO_TLS

LEAVING, CANCELLING = 0.15, 0.1
"""Shares of the requests whose client leaves early, or cancels them at the other front."""

MOST = 100
"""Tokens of the longest answer."""

CLEAR = {
    "backend_unavailable": 503,
    "cluster_unavailable": 503,
    "engine_dead": 503,
    "queue_full": 429,
    "rate_limit_exceeded": 429,
    "request_cancelled": 499,
    "server_stopping": 503,
}
"""Errors that a client may see while parts are killed, with their statuses."""

_ALMOST = 1.0
"""Seconds by which a client may see later than it happened that its front was killed."""


@dataclass(slots=True)
class Seen:
    """One request. Times are by `time.time`; `admitted`: when its status came.

    `texts`: what came of each choice; `pieces`: the characters that came by then. `outcome` says
    what became of it; `usage` is the server's, None if it has told none. `unconnected`: there was
    no server.
    """

    number: int
    key: str
    front: int
    model: str
    tokens: int
    n: int
    stream: bool
    sent: float = field(default_factory=time.time)
    ended: float = 0.0
    admitted: float | None = None
    status: int = 0
    texts: dict[int, str] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)
    pieces: list[tuple[float, int]] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    done: bool = False
    error: dict[str, Any] | None = None
    unconnected: bool = False
    outcome: str = ""

    @property
    def received(self) -> int:
        """Characters of all choices, which are tokens."""
        return sum(map(len, self.texts.values()))

    def received_by(self, when: float) -> int:
        """Characters that had come until then."""
        return sum(length for at, length in self.pieces if at <= when)


class Clients:
    """Those of all fronts; `over` makes them stop after what they do."""

    def __init__(self, urls: Sequence[str], outages: Sequence[Outage], seed: int) -> None:
        self.seen: list[Seen] = []
        self.broken: list[str] = []
        self.over = False
        self._urls = urls
        self._outages = outages
        self._random = random.Random(seed)
        self._cancels: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """One request after the other."""
        limits = httpx2.Limits(max_keepalive_connections=4)
        async with httpx2.AsyncClient(timeout=120, limits=limits, verify=NO_TLS) as http:
            while not self.over:
                seen = await self._ask(http)
                self.seen.append(seen)
                if seen.outcome.startswith("broken"):
                    self.broken.append(f"{seen.outcome} (request {seen.number} of {seen.key})")
                if seen.outcome not in ("whole", "left"):
                    await asyncio.sleep(self._random.uniform(0.1, 0.5))
            await asyncio.gather(*self._cancels)

    async def _ask(self, http: httpx2.AsyncClient) -> Seen:
        draw = self._random
        seen = Seen(
            number=draw.getrandbits(60),
            key=draw.choice(KEYS),
            front=draw.randrange(len(self._urls)),
            model=draw.choice(list(MODELS)),
            tokens=draw.randint(1, MOST),
            n=draw.choice((1, 1, 1, 2)),
            stream=draw.random() < 0.7,
        )
        id = secrets.token_hex(8)
        path, body = self._body(seen)
        headers = {"Authorization": f"Bearer {secret(seen.key)}", "X-Request-Id": id}
        if draw.random() < CANCELLING:
            task = asyncio.create_task(self._cancel(http, seen.front, id, draw.uniform(0, 2)))
            self._cancels.add(task)
            task.add_done_callback(self._cancels.discard)
        leave_after = draw.uniform(0, 3) if draw.random() < LEAVING else None
        try:
            async with (
                asyncio.timeout(leave_after),
                http.stream(
                    "POST", self._urls[seen.front] + path, json=body, headers=headers
                ) as response,
            ):
                seen.status, seen.admitted = response.status_code, time.time()
                await _read(response, seen)
            seen.outcome = judged(seen)
        except TimeoutError:
            seen.outcome = "left"
        except httpx2.TransportError as error:
            seen.outcome = f"broken: {type(error).__name__}: {error}"
            seen.unconnected = isinstance(error, httpx2.ConnectError)
        except (KeyError, TypeError, ValueError) as error:
            seen.outcome = f"broken: not understood: {error!r}"
        seen.ended = time.time()
        if seen.outcome.startswith("broken") and self._was_down(seen):
            seen.outcome = "front killed"
        if text := _wrong(seen):
            seen.outcome = f"broken: {text}"
        return seen

    def _body(self, seen: Seen) -> tuple[str, dict[str, Any]]:
        """Path and body; the engine writes down how the prompt begins."""
        draw = self._random
        text = f"[{seen.key} {seen.number}] " + "Tell me more. " * draw.randint(0, 30)
        body: dict[str, Any] = {"model": seen.model, "max_tokens": seen.tokens, "n": seen.n}
        if seen.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if draw.random() < 0.6:
            messages = [{"role": "user", "content": text}]
            return "/v1/chat/completions", {**body, "messages": messages}
        return "/v1/completions", {**body, "prompt": text}

    async def _cancel(self, http: httpx2.AsyncClient, front: int, id: str, after: float) -> None:
        """Cancel a request at another front, which may be dead, or the request over."""
        await asyncio.sleep(after)
        url = self._urls[(front + 1) % len(self._urls)]
        headers = {"Authorization": f"Bearer {ADMIN}"}
        began = time.time()
        try:
            answer = await http.post(f"{url}/v1/requests/{id}/cancel", headers=headers)
        except httpx2.TransportError as error:
            if not any(outage.killed - _ALMOST < time.time() for outage in self._outages):
                self.broken.append(f"broken: cancel: {error!r}")
            return
        slow = time.time() - began
        if answer.status_code not in (200, 404, 503):
            self.broken.append(f"broken: cancel: {answer.status_code} {answer.text} after {slow}")

    def _was_down(self, seen: Seen) -> bool:
        """Whether its front was killed while it ran, or was not there."""
        return any(
            outage.front == seen.front
            and outage.killed <= seen.ended
            and seen.sent <= outage.back + _ALMOST
            for outage in self._outages
        )


async def _read(response: httpx2.Response, seen: Seen) -> None:
    """Note all that comes."""
    if seen.status != 200:
        seen.error = json.loads(await response.aread())["error"]
        return
    if not seen.stream:
        body = json.loads(await response.aread())
        for choice in body["choices"]:
            _note(seen, choice, choice.get("message", choice))
        seen.usage, seen.done = body["usage"], True
        return
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            seen.done = True
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            if "error" in event:
                seen.error = event["error"]
                continue
            seen.usage = event.get("usage") or seen.usage
            for choice in event["choices"]:
                _note(seen, choice, choice.get("delta", choice))


def _note(seen: Seen, choice: dict[str, Any], said: dict[str, Any]) -> None:
    text = said.get("content") or said.get("text") or ""
    index = choice["index"]
    seen.texts[index] = seen.texts.get(index, "") + text
    seen.pieces.append((time.time(), len(text)))
    if reason := choice["finish_reason"]:
        seen.finishes[index] = reason


def judged(seen: Seen) -> str:
    """What became of a request whose response has ended by itself."""
    if error := seen.error:
        code = error.get("code")
        clear = code in CLEAR and error.get("message") and error.get("type")
        if not clear or seen.status not in (200, CLEAR.get(str(code))):
            return f"broken: status {seen.status}, {json.dumps(error)}"
        return f"{code}{' in the stream' if seen.status == 200 else ''}"
    if not seen.done:
        return "broken: a stream without [DONE]"
    if len(seen.finishes) != seen.n:
        return f"broken: finish reasons {seen.finishes} of {seen.n} choices"
    if "abort" in seen.finishes.values():
        return "cancelled"
    if set(seen.finishes.values()) != {"length"}:
        return f"broken: finish reasons {seen.finishes}"
    if any(len(text) != seen.tokens for text in seen.texts.values()):
        return f"broken: {list(seen.texts.values())} have not {seen.tokens} tokens"
    if seen.usage is None or seen.usage["completion_tokens"] != seen.tokens * seen.n:
        return f"broken: usage {seen.usage} for {seen.n} answers of {seen.tokens} tokens"
    return "whole"


def _wrong(seen: Seen) -> str | None:
    """What is wrong with the text, however the answer ended."""
    said = "ba" * MOST
    for index, text in seen.texts.items():
        if not said.startswith(text) or len(text) > seen.tokens or index >= seen.n:
            return f"choice {index} says {text!r}"
    return None
