"""Requests to the remote server: retries, errors, server-sent events."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import aclosing, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx2

from enginebay import BackendUnavailableError, ServingError
from enginebay_remote.failures import (
    NONSENSE,
    TRANSIENT,
    SilentError,
    UnreachableError,
    refusal,
    status_of,
)
from enginebay_remote.options import is_plain

LONGEST_DELAY = 10.0
QUICK = 30.0
_JSON = {"Content-Type": "application/json"}


class Http:
    """The server at `url`: its root, or with the version of its API (`/v1`, `/v1beta/openai`, ...).

    Paths that begin with `/v1` are those of the API, whatever its version is called.
    A request is tried again after `delay` seconds, then twice that and so on, `retries` times, when
    the server cannot be reached or is busy: never once an event of its answer has been passed on,
    and not when it was silent for `timeout` seconds. `away` is why a server that had answered
    cannot be reached any more; it is tried until it answers again, unless somebody else `watches`.
    `quick`: seconds for an answer that nothing is generated for, such as a list of models.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        timeout: float = 600,
        connect_timeout: float = 5,
        retries: int = 2,
        delay: float = 0.5,
        quick: float = QUICK,
        watches: bool = True,
    ) -> None:
        url = url.rstrip("/")
        self._api = url if re.search(r"/v\d", urlsplit(url).path) else f"{url}/v1"
        self.root = self._api.removesuffix("/v1")
        self.name = f"the remote server {self.root}"
        self.retries = retries
        self.delay = delay
        self.away: str | None = None
        self._watches = watches
        self._reached = False
        self._watching: asyncio.Task[None] | None = None
        self._timeout = httpx2.Timeout(timeout, connect=connect_timeout)
        self._quick = min(timeout, quick)
        self._flawed = key is not None and not is_plain(key)
        self._client = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key and not self._flawed else {},
            timeout=self._timeout,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        )

    async def close(self) -> None:
        """Close all connections, those in use, too."""
        if self._watching:
            self._watching.cancel()
        await self._client.aclose()

    async def get(self, path: str) -> Any:
        """The JSON at `path`."""
        return _json(await self._send("GET", path, None))

    async def require(self, path: str) -> None:
        """Raise unless `path` answers with a 200, whatever it says."""
        await self._send("GET", path, None)

    async def post(self, path: str, body: Any) -> Any:
        """The JSON that answers `body`."""
        return _json(await self._send("POST", path, body))

    async def ask(self, path: str, body: Any) -> httpx2.Response:
        """The whole response to `body`."""
        return await self._send("POST", path, body)

    async def events(
        self,
        path: str,
        body: Any,
        headers: dict[str, str],
        *,
        says: Callable[[dict[str, Any]], bool] = bool,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The events that answer `body`. Closing the generator closes the connection.

        Up to the first one that `says` something the request can be tried again.
        """
        self._require_key()
        tries = _Tries(self)
        while True:
            began = False
            held: list[dict[str, Any]] = []
            try:
                async with self._client.stream(
                    "POST", self.url(path), content=_dumped(body), headers=_JSON | headers
                ) as response:
                    if response.status_code != 200:
                        await response.aread()
                        raise self._refused(response)
                    self._reached = True
                    if "json" in response.headers.get("content-type", ""):
                        raise await self._not_streamed(response)
                    if "html" in response.headers.get("content-type", ""):
                        raise _no_json(response)
                    async with aclosing(read_events(response.aiter_bytes())) as events:
                        async for event in events:
                            if event.get("error"):
                                raise _Refused(self.name, status_of(event), event)
                            held.append(event)
                            began = began or self._begins(event, says)
                            while began and held:
                                yield held.pop(0)
                    if not began:
                        raise httpx2.RemoteProtocolError("it ended without an answer")
                    return
            except (httpx2.RequestError, _Refused) as error:
                await tries.failed(error, final=began)

    def url(self, path: str) -> str:
        """The whole address of a path."""
        if path.startswith("/v1/"):
            return self._api + path.removeprefix("/v1")
        return self.root + path

    async def _send(self, method: str, path: str, body: Any) -> httpx2.Response:
        self._require_key()
        tries = _Tries(self)
        while True:
            try:
                # Timeouts of the client are of each byte.
                async with asyncio.timeout(self._quick if method == "GET" else None):
                    response = await self._client.request(method, self.url(path), json=body)
                if response.status_code == 200:
                    self._reached = True
                    return response
                raise self._refused(response)
            except TimeoutError as error:
                raise SilentError(
                    f"{self.name}: it did not answer within {self._quick:g} seconds"
                ) from error
            except (httpx2.RequestError, _Refused) as error:
                await tries.failed(error)

    def _require_key(self) -> None:
        if self._flawed:
            raise BackendUnavailableError(f"{self.name}: its key is not printable ASCII")

    def _begins(self, event: dict[str, Any], says: Callable[[dict[str, Any]], bool]) -> bool:
        """Whether an event is the first one that says something."""
        try:
            if _aborted(event):
                raise _Refused(self.name, 503, {"message": "it ended the answer unsaid"})
            return says(event)
        except NONSENSE as error:
            raise httpx2.RemoteProtocolError("it says what is no completion") from error

    def _refused(self, response: httpx2.Response) -> "_Refused":
        """A response, read whole, with another status than 200."""
        try:
            payload = response.json()
        except (ValueError, RecursionError):
            page = "html" in response.headers.get("content-type", "")
            payload = {"message": response.reason_phrase if page else response.text[:500]}
        if response.has_redirect_location:
            payload = {"message": f"it has moved to {response.headers['location']}; correct `path`"}
        retry_after = response.headers.get("retry-after", "")
        return _Refused(self.name, response.status_code, payload, retry_after)

    async def _not_streamed(self, response: httpx2.Response) -> "_Refused | ServingError":
        """What JSON means where a stream was asked for: an error, or a server without streams."""
        await response.aread()
        payload = _json(response)
        if isinstance(payload, dict) and payload.get("error"):
            return _Refused(self.name, status_of(payload), payload)
        return BackendUnavailableError(f"{response.url} answers whole where a stream is asked for")

    def lost(self, reason: str) -> None:
        """Take note that nobody is there, and watch for somebody to come back."""
        if self._watches and self._reached and self.away is None:
            self.away = reason
            self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        delay = self.delay
        while self.away:
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY)
            with suppress(httpx2.RequestError, TimeoutError):
                async with asyncio.timeout(self._quick):
                    response = await self._client.get(self.url("/v1/models"))
                if response.status_code < 500:
                    self.away = None


class _Refused(Exception):
    """An answer that is none, by its status or by an event."""

    def __init__(self, server: str, status: int, payload: Any, retry_after: str = "") -> None:
        super().__init__(status)
        self.status = status
        self.retry_after = retry_after
        self.error = refusal(server, status, payload, _seconds(retry_after))


def _aborted(event: dict[str, Any]) -> bool:
    """Whether a choice was ended by the server, as one does that is being stopped."""
    return any(choice.get("finish_reason") == "abort" for choice in event.get("choices") or ())


def _seconds(text: str) -> int | None:
    """A `Retry-After` in seconds; None for a date, or what no client would wait for."""
    return int(text) if text.isdecimal() and len(text) < 6 else None


class _Tries:
    """Waits between the tries of one request, or raises what the last one failed with."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self._done = 0

    async def failed(self, error: httpx2.RequestError | _Refused, *, final: bool = False) -> None:
        self._done += 1
        again = not isinstance(error, httpx2.ReadTimeout)
        if isinstance(error, _Refused):
            again = error.status in TRANSIENT
        if final or not again or self._done > self._http.retries:
            told = self._told(error)
            if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
                self._http.lost(told.message)
            raise told from error
        delay = self._http.delay * 2 ** (self._done - 1)
        if isinstance(error, _Refused) and error.retry_after.isdecimal():
            delay = max(delay, float(error.retry_after))
        await asyncio.sleep(min(delay, LONGEST_DELAY))

    def _told(self, error: httpx2.RequestError | _Refused) -> ServingError:
        if isinstance(error, _Refused):
            return error.error
        reason = str(error) or "the connection broke"
        kind = BackendUnavailableError
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            reason, kind = f"it cannot be reached ({reason})", UnreachableError
        if isinstance(error, httpx2.ReadTimeout):
            seconds = error.request.extensions["timeout"]["read"]
            reason, kind = f"it was silent for {seconds:g} seconds", SilentError
        return kind(f"{self._http.name}: {reason}")


def _dumped(body: Any) -> bytes:
    """JSON in ASCII, which can also encode a lone surrogate."""
    return json.dumps(body, separators=(",", ":")).encode()


def _json(response: httpx2.Response) -> Any:
    try:
        return response.json()
    except (ValueError, RecursionError) as error:
        raise _no_json(response) from error


def _no_json(response: httpx2.Response) -> BackendUnavailableError:
    kind = response.headers.get("content-type", "of no type").partition(";")[0]
    return BackendUnavailableError(
        f"{response.url} does not answer in JSON ({kind}); is it an OpenAI-compatible server?"
    )


async def read_events(chunks: AsyncIterable[bytes]) -> AsyncGenerator[dict[str, Any], None]:
    """The JSON of events up to `[DONE]`; a body that ends before has been cut.

    An event is its `data:` lines, and ends with an empty one
    (https://html.spec.whatwg.org/multipage/server-sent-events.html). Lines end in a line feed and
    nothing else: JSON may hold U+2028, which `splitlines` breaks at.
    """
    rest, data = b"", b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data = b"\n".join(filter(None, (data, line[5:].strip())))
            if data == b"[DONE]":
                return
            if data and not line.strip():
                event, data = _event(data), b""
                if isinstance(event, dict):
                    yield event
    raise httpx2.RemoteProtocolError("the answer was cut off")


def _event(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise httpx2.RemoteProtocolError("an event is not JSON") from error
