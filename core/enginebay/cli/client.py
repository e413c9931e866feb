"""Connects to a running server, and reads what it sends."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from enginebay.cli.console import fail
from enginebay.config.schema import resolved_path

if TYPE_CHECKING:
    import httpx2

    from enginebay.config.schema import Config

_UNIX = "unix:"
_CONNECT_TIMEOUT = 5.0  # seconds
KEY_HINT = "; name one with --api-key, or in ENGINEBAY_API_KEY"


def configured(path: Path | None) -> Config:
    """The config to find the server by; defaults when there is no `config.yml` here."""
    from enginebay.cli.settings import read_config
    from enginebay.config.load import DEFAULT_PATH
    from enginebay.config.schema import Config

    return read_config(path) if path or DEFAULT_PATH.exists() else Config()


class Target(NamedTuple):
    """The server that a command calls, and its key; `config` if the URL came from it."""

    url: str
    api_key: str | None
    config: Config | None


def target(url: str | None, config: Path | None, api_key: str | None) -> Target:
    """The server at `url`, or the one the config describes."""
    if url:
        return Target(url, api_key, None)
    settings = configured(config)
    return Target(address(settings), api_key or key_of(settings), settings)


def address(config: Config) -> str:
    """The URL of the server that runs with this config; `unix:PATH` if it has a socket instead."""
    from enginebay.server.http.sockets import scheme_of, unix_path, url_of

    if path := unix_path(config):
        return f"{_UNIX}{path}"
    return url_of(config.server.host, config.server.port, scheme_of(config))


def key_of(config: Config) -> str | None:
    """A key that the server with this config accepts."""
    keys = config.server.api_keys
    return keys[0].get_secret_value() if keys else None


def connect(
    url: str, api_key: str | None, config: Config | None = None, timeout: float | None = None
) -> httpx2.Client:
    """A client for routes below the server's root; nothing is sent yet.

    `url` with or without `http://` and `/v1`, or `unix:PATH`. `config`: that of the server, if the
    URL came from it. `timeout`: seconds without a byte; by default unlimited, because a prompt may
    take minutes.
    """
    import httpx2

    return httpx2.Client(
        base_url=root_of(url),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=httpx2.Timeout(timeout, connect=_CONNECT_TIMEOUT),
        follow_redirects=True,
        **ways_to(url, config),
    )


def ways_to(url: str, config: Config | None) -> dict[str, Any]:
    """What an HTTP client has to be told to reach a server: its socket, its certificate.

    The certificate of the config is believed, whatever host it is for and whoever signed it: only
    the server has its key.
    """
    import httpx2

    if url.startswith(_UNIX):
        return {"transport": httpx2.HTTPTransport(uds=url.removeprefix(_UNIX))}
    if config is None or config.server.tls_cert is None:
        return {}
    return {"verify": _believing(Path(resolved_path(config.server.tls_cert, config.base)))}


def _believing(chain: Path) -> ssl.SSLContext:
    """Believes the first certificate of a file, and none that others of the file have signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        _, begin, rest = chain.read_text(encoding="utf-8").partition("-----BEGIN CERTIFICATE-----")
        own, end, _ = rest.partition("-----END CERTIFICATE-----")
        context.load_verify_locations(cadata=f"{begin}{own}{end}")
    except (OSError, ValueError) as error:  # of which ssl's are
        fail(f"the certificate {chain} cannot be read: {error}")
    return context


def root_of(url: str) -> str:
    """The URL of the server's root: with `http://`, without `/v1`."""
    if url.startswith(_UNIX):
        return "http://localhost"
    url = url if "://" in url else f"http://{url}"
    return url.rstrip("/").removesuffix("/v1")


def distrust(error: httpx2.TransportError) -> str:
    """In brackets, why the certificate of a server is not believed; empty if it is not that."""
    said = str(error)
    return f" ({said}; see SSL_CERT_FILE in docs/guides/proxy.md)" if "CERTIFICATE" in said else ""


class ApiError(Exception):
    """A server returned an error. `status` is 0 if its answer had begun."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message + (KEY_HINT if status == 401 else ""))
        self.status = status


def require_success(response: httpx2.Response) -> None:
    """Raise `ApiError` with the server's message if the response is an error."""
    if response.is_success:
        return
    response.read()
    try:
        message = _message_of(response.json())
    except ValueError:
        message = None
    status = response.status_code
    raise ApiError(message or f"{status} {response.reason_phrase}", status)


def body_of(response: httpx2.Response) -> Any:
    """The JSON of a response. Raises `ApiError` if it is an error, or something else."""
    require_success(response)
    try:
        return response.json()
    except ValueError as error:
        raise ApiError("the response is not JSON", response.status_code) from error


def events_of(response: httpx2.Response) -> Iterator[Any]:
    """The JSON of each event of a stream, up to `[DONE]`. Raises `ApiError` for an error."""
    require_success(response)
    rest = b""
    for piece in response.iter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            if line.startswith(b"data:"):
                event = json.loads(data)
                if message := _message_of(event):
                    raise ApiError(message)
                yield event


def _message_of(body: Any) -> str | None:
    """The message of an error, None if the body is no error."""
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("message", error)) if isinstance(error, dict) else error


def cards_of(client: httpx2.Client) -> list[dict[str, Any]]:
    """What the server says of each of its models."""
    body = body_of(client.get("/v1/models"))
    try:
        return [{**card} for card in body["data"]]
    except (LookupError, TypeError) as error:
        raise ApiError("the response is not a list of models") from error


@contextmanager
def running_server(
    url: str | None, config: Path | None, api_key: str | None
) -> Iterator[httpx2.Client]:
    """A client as of `connect`; the command fails if nothing answers, or if that is an error."""
    import httpx2

    url, api_key, settings = target(url, config, api_key)
    try:
        with connect(url, api_key, settings) as client:
            yield client
    except httpx2.TransportError as error:
        fail(f"nothing answers at {url} ({error}); is the server running?")
    except ApiError as error:
        fail(str(error))
