"""`enginebay keys usage`: what keys have used, from the file that the server writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from enginebay.cli.console import fail, print_table, stderr, stdout, table
from enginebay.cli.keys import entries
from enginebay.cli.settings import ConfigOption, read_config

if TYPE_CHECKING:
    from rich.table import Table

    from enginebay.chat.answer.account import Used
    from enginebay.config.schema import Config
    from enginebay.server.usage.usage_file import Slot

NO_KEY = "(no key)"


def usage(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this key, day by day.")
    ] = None,
    days: Annotated[
        int, typer.Option(metavar="N", min=1, max=36_500, help="The last days (UTC), with today.")
    ] = 30,
    as_json: Annotated[
        bool, typer.Option("--json", help="Every day, key and model, as GET /v1/usage has them.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Show how many requests and tokens each key has used of each model."""
    from dataclasses import asdict

    settings = read_config(config)
    found = _read(settings, days, name)
    if name and not found:
        _require_known(settings, name)
    if as_json:
        rows = [
            {"key": slot.key or None, "model": slot.model, "day": slot.day, **asdict(used)}
            for slot, used in found.items()
        ]
        stdout().print(json.dumps(rows, indent=2), soft_wrap=True)
        return
    if not found:
        stderr().print(f"nothing was used in the last {days} days")
        return
    print_table(_table(found, by_day=name is not None))


def _read(config: Config, days: int, name: str | None) -> dict[Slot, Used]:
    """Usage of the last days; exits with an error if it is not kept, or cannot be read."""
    import sqlite3
    from datetime import timedelta

    from enginebay.server.usage.usage_file import read_usage, usage_path
    from enginebay.server.usage.usage_records import utc_now
    from enginebay.sqlite_file import BrokenFileError

    path = usage_path(config)
    if path is None:
        fail(
            "usage is not kept in a file: set `server.usage_file` in a config; a server that runs "
            "tells at /v1/usage what was used since it started"
        )
    since = utc_now().date() - timedelta(days=days - 1)
    try:
        return read_usage(path, since.isoformat(), name)
    except FileNotFoundError:
        return {}  # the server makes it when there is something to write
    except (BrokenFileError, OSError, sqlite3.Error) as error:
        fail(f"{path} cannot be read: {error}")


def _require_known(config: Config, name: str) -> None:
    from enginebay.server.access.key_store import fixed_keys, keys_path

    path = keys_path(config)
    known = [entry.name for entry in entries(path)] + [key.name for key in fixed_keys(config)]
    if name not in known:
        fail(f"there is no key of {name}; there are keys of: {', '.join(known) or 'nobody'}")


def _table(found: dict[Slot, Used], *, by_day: bool) -> Table:
    """A row for each key and model, or of one key for each day and model; then the sum."""
    from enginebay.chat.answer.account import Used

    rows = table("day" if by_day else "key", "model", "requests", "prompt", "cached", "completion")
    sums: dict[tuple[str, str], Used] = {}
    total = Used()
    for slot, used in found.items():
        first = slot.day if by_day else slot.key or NO_KEY
        sums.setdefault((first, slot.model), Used()).add(used)
        total.add(used)
    for (first, model), used in [*sorted(sums.items()), (("total", ""), total)]:
        counts = (used.requests, used.prompt_tokens, used.cached_tokens, used.completion_tokens)
        rows.add_row(first, model, *map(str, counts))
    return rows
