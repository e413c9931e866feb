"""`enginebay chat`: against a running server, or one that runs for this chat only."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.console import fail
from enginebay.cli.private_server import private_server
from enginebay.cli.settings import ConfigOption, KeyOption, UrlOption

if TYPE_CHECKING:
    import httpx2


def chat(
    message: Annotated[
        str | None,
        typer.Argument(help="Send this message and exit; without it, chat interactively."),
    ] = None,
    url: UrlOption = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model to use. [the first]")
    ] = None,
    path: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Load this model, for this chat only.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Backend to use with --path. [detected from the files]"),
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message.")] = None,
    stream: Annotated[
        bool, typer.Option(help="Print the answer as it is generated, or when it is complete.")
    ] = True,
    tools: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON list of tools to offer, as in the API."),
    ] = None,
    images: Annotated[
        list[Path] | None,
        typer.Option(
            "--image", metavar="FILE", help="Send this picture with the message; repeatable."
        ),
    ] = None,
    api_key: KeyOption = None,
    config: ConfigOption = None,
) -> None:
    """Chat in the terminal; the answer goes to stdout, all else to stderr."""
    import httpx2

    from enginebay.cli.client import ApiError, connect, distrust, target
    from enginebay.cli.conversation import Conversation, loop
    from enginebay.contract.errors import InvalidRequestError

    settings = None
    with ExitStack() as stack:
        if path is not None:
            url = stack.enter_context(private_server(path, backend))
        else:
            url, api_key, settings = target(url, config, api_key)
        client = stack.enter_context(connect(url, api_key, settings))
        try:
            name = model or _first_model(client, url)
            conversation = Conversation(
                client, name, system, stream=stream, tools=_read_tools(tools)
            )
            for image in images or ():
                conversation.add_picture(image)
            if message is None and not sys.stdin.isatty():
                message = sys.stdin.read().strip()
            if message is None:
                loop(conversation)
            elif not conversation.ask(message):
                raise typer.Exit(130)
        except InvalidRequestError as error:
            fail(error.message)
        except httpx2.TransportError as error:
            fail(
                f"nothing answers at {url}{distrust(error)}: start the server with `enginebay "
                "serve`, name a running one with --url, or load a model for this chat with --path"
            )
        except ApiError as error:
            fail(f"{url} answers: {error}")


def _read_tools(path: Path | None) -> Any:
    import json

    try:
        return json.loads(path.read_text(encoding="utf-8")) if path else None
    except (OSError, ValueError) as error:
        fail(f"{path} cannot be read as JSON: {error}")


def _first_model(client: httpx2.Client, url: str) -> str:
    from enginebay.cli.client import cards_of

    for card in cards_of(client):
        return str(card["id"])
    fail(f"the server at {url} has no model; add one under `models` in its config")
