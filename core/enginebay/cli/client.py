"""Connects to a running server, with the OpenAI SDK or plain HTTP."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from enginebay.cli.console import fail
from enginebay.config.schema import resolved_path

if TYPE_CHECKING:
    import httpx2
    from openai import APIError, OpenAI

    from enginebay.config.schema import Config

_UNIX = "unix:"
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


def connect(url: str, api_key: str | None, config: Config | None = None) -> OpenAI:
    """A client; nothing is sent yet. `url` with or without `http://` and `/v1`, or `unix:PATH`.

    `config`: that of the server, if the URL came from it.
    """
    from openai import DefaultHttpxClient, OpenAI

    hooks = {"request": [] if api_key else [_without_key]}
    return OpenAI(
        base_url=base_url(url),
        api_key=api_key or "none",
        max_retries=0,
        http_client=DefaultHttpxClient(event_hooks=hooks, **ways_to(url, config)),
    )


def _without_key(request: httpx2.Request) -> None:
    """Remove the key that the SDK insists on: the server would call it a wrong one."""
    del request.headers["Authorization"]


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


def base_url(url: str) -> str:
    """The URL as the OpenAI SDK wants it: with `http://` and `/v1`."""
    if url.startswith(_UNIX):
        return "http://localhost/v1"
    url = url if "://" in url else f"http://{url}"
    return url.rstrip("/").removesuffix("/v1") + "/v1"


def distrust(error: APIError) -> str:
    """In brackets, why the certificate of a server is not believed; empty if it is not that."""
    said = str(error.__cause__)
    return f" ({said}; see SSL_CERT_FILE in docs/guides/proxy.md)" if "CERTIFICATE" in said else ""


def message_of(error: APIError) -> str:
    """The server's error message, without the SDK's wrapping.

    If a key is missing, also how to pass one.
    """
    body: Any = error.body
    message = body.get("message") if isinstance(body, dict) else None
    hint = KEY_HINT if getattr(error, "status_code", 0) == 401 else ""
    return f"{message or error.message}{hint}"


@contextmanager
def running_server(
    url: str | None, config: Path | None, api_key: str | None
) -> Iterator[httpx2.Client]:
    """A client for routes below the server's root; the command fails if nothing answers."""
    import httpx2

    url, api_key, settings = target(url, config, api_key)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    root = base_url(url).removesuffix("/v1")
    try:
        ways = ways_to(url, settings)
        with httpx2.Client(base_url=root, headers=headers, timeout=None, **ways) as client:
            yield client
    except httpx2.TransportError as error:
        fail(f"nothing answers at {url} ({error}); is the server running?")


def require_success(answer: httpx2.Response) -> None:
    """Fail with the server's error message if the answer is an error."""
    if answer.is_success:
        return
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, LookupError, TypeError):
        message = f"{answer.status_code} {answer.reason_phrase}"
    if answer.status_code == 401:
        message += KEY_HINT
    fail(message)
