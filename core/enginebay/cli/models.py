"""`enginebay models`, `models list` and `ps`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from enginebay.cli.console import fail, print_table, stderr, table
from enginebay.cli.settings import ConfigOption, KeyOption, UrlOption, load_plugins

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2

    from enginebay.config.schema import Config


def models(
    context: typer.Context,
    url: UrlOption = None,
    config: ConfigOption = None,
    api_key: KeyOption = None,
) -> None:
    """List the models of a running server, or those of the config if none is running."""
    if not context.invoked_subcommand:
        list_models(url, config, api_key)


def list_models(
    url: UrlOption = None, config: ConfigOption = None, api_key: KeyOption = None
) -> None:
    """List the models of a running server, or those of the config if none is running."""
    _list(url, config, api_key, in_memory=False)


def ps(url: UrlOption = None, config: ConfigOption = None, api_key: KeyOption = None) -> None:
    """List the models that a running server has in memory."""
    _list(url, config, api_key, in_memory=True)


def _list(url: str | None, config: Path | None, api_key: str | None, *, in_memory: bool) -> None:
    import httpx2

    from enginebay.cli.client import ApiError, connect, distrust, target

    where, api_key, settings = target(url, config, api_key)
    try:
        with connect(where, api_key, settings) as client:
            _print_running(client, in_memory=in_memory)
    except httpx2.TransportError as error:
        if settings is None or in_memory:
            fail(f"nothing answers at {where}{distrust(error)}; is the server running?")
        stderr().print(f"no server answers at {where}; these are the models of the config:")
        _print_configured(settings)
    except ApiError as error:
        fail(f"{where} answers: {error}")


def _print_running(client: httpx2.Client, *, in_memory: bool) -> None:
    from enginebay.cli.client import cards_of

    rows = table("model", "backend", "state", "context", "RAM", "GPU", "requests")
    for card in cards_of(client):
        if in_memory and card.get("state") in _NOT_IN_MEMORY:
            continue
        memory = card.get("memory") or {}
        rows.add_row(
            str(card["id"]),
            card.get("backend") or "",
            _state(card),
            str(card.get("context_length") or ""),
            _size(memory.get("ram")),
            _size(memory.get("gpu")),
            str(card.get("requests") or ""),
        )
    print_table(rows)


_NOT_IN_MEMORY = ("unloaded", "failed")


def _state(card: dict[str, Any]) -> str:
    """State, progress and error; empty for another kind of server."""
    state = str(card.get("state") or "")
    if state == "loading" and not card.get("error"):
        state += f" ({card.get('stage')}, {card.get('progress', 0):.0%})"
    return f"{state}: {card['error']}" if card.get("error") else state


def _size(size: int | None) -> str:
    from enginebay.models.loading.memory import gib

    return gib(size) if size else ""


def _print_configured(config: Config) -> None:
    from enginebay.models.files.model_folder import folder_of

    rows = table("model", "backend", "path")
    for model in config.models:
        rows.add_row(", ".join([model.name, *model.aliases]), model.backend, model.path)
    if config.loading.from_model_dir:
        for found in folder_of(config, load_plugins(config)).models().values():
            rows.add_row(", ".join([found.name, *found.aliases]), found.backend, str(found.path))
    print_table(rows)
