"""`enginebay health`."""

from __future__ import annotations

from typing import Annotated

import typer

from enginebay.cli.console import fail, stdout
from enginebay.cli.settings import ConfigOption, UrlOption

_SECONDS = 5.0  # what is well answers within a few milliseconds


def health(
    url: UrlOption = None,
    config: ConfigOption = None,
    live: Annotated[
        bool, typer.Option("--live", help="Only whether the server responds and is not stuck.")
    ] = False,
    ready: Annotated[
        bool, typer.Option("--ready", help="Only whether the default model can answer.")
    ] = False,
) -> None:
    """Say how a running server is; exit with 1 if it is not well or does not answer."""
    import httpx2

    from enginebay.cli.client import root_of, target, ways_to

    if live and ready:
        fail("name --live or --ready, not both", code=2)
    at, _, settings = target(url, config, None)
    where, ways = root_of(at), ways_to(at, settings)
    shown = at if "transport" in ways else where
    path = "/health/live" if live else "/health/ready" if ready else "/health"
    try:
        # Without HTTP_PROXY and the like, which a container may have for its downloads, but not
        # without SSL_CERT_FILE: a transport of its own has the one and not the others.
        transport = ways.get("transport") or httpx2.HTTPTransport(**ways)
        with httpx2.Client(base_url=where, timeout=_SECONDS, transport=transport) as client:
            answer = client.get(path)
        said = answer.json()
        lines = [f"{said['status']}: {said['state']}"]
        lines += [f"{name}: {model['state']}" for name, model in said["models"].items()]
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        fail(f"nothing answers at {shown}: {str(error) or type(error).__name__}")
    except (ValueError, LookupError, TypeError, AttributeError):
        fail(f"what answers at {shown} is not Enginebay: it has no {path}")
    stdout().print("\n".join(lines))
    if not answer.is_success:
        raise typer.Exit(1)
