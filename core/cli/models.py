"""`enginebay models`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from core.cli.console import fail, print_table, stderr, table
from core.cli.settings import ConfigOption, KeyOption

if TYPE_CHECKING:
    from openai import OpenAI

    from core.config.schema import Config


def models(
    context: typer.Context,
    url: Annotated[str | None, typer.Option(metavar="URL", help="A running server.")] = None,
    config: ConfigOption = None,
    api_key: KeyOption = None,
) -> None:
    """List the models of a running server, or those of the config when none runs."""
    if context.invoked_subcommand:
        return
    from openai import APIConnectionError, APIError

    from core.cli.client import address, configured, connect, key_of, message_of

    settings = None if url else configured(config)
    if settings:
        api_key = api_key or key_of(settings)
    where = url or address(settings) if settings else url or ""
    try:
        with connect(where, api_key) as client:
            _print_running(client)
    except APIConnectionError:
        if settings is None:
            fail(f"nothing answers at {where}; is the server running?")
        stderr().print(f"no server answers at {where}; these are the models of the config:")
        _print_configured(settings)
    except APIError as error:
        fail(f"{where} answers: {message_of(error)}")


def _print_running(client: OpenAI) -> None:
    health = _health(client)
    rows = table("model", "backend", "state", "context")
    for model in client.models.list():
        extra: dict[str, Any] = model.model_extra or {}
        state = extra.get("state") or ""
        if error := health.get(model.id, {}).get("error"):
            state += f": {error}"
        rows.add_row(
            model.id, extra.get("backend") or "", state, str(extra.get("context_length") or "")
        )
    print_table(rows)


def _health(client: OpenAI) -> dict[str, Any]:
    """`models` of `/health`; empty for a server of another kind."""
    from openai import APIStatusError

    try:
        answer: Any = client.get("/health", cast_to=object)
    except APIStatusError as error:
        answer = error.body
    found = answer.get("models") if isinstance(answer, dict) else None
    return found if isinstance(found, dict) else {}


def _print_configured(config: Config) -> None:
    rows = table("model", "backend", "path")
    for model in config.models:
        rows.add_row(model.name, model.backend, model.path)
    print_table(rows)
