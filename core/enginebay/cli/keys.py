"""`enginebay keys`: the keys file. A running server sees changes within a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from enginebay.cli.console import fail, print_table, stderr, stdout, table
from enginebay.cli.first_keys import who_needs_keys
from enginebay.cli.settings import ConfigOption, read_config

if TYPE_CHECKING:
    from enginebay.config.keys import KeyEntry

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the key's owner.")]


def list_keys(config: ConfigOption = None) -> None:
    """List the owners and limits of the keys in the keys file, never the keys themselves."""
    path = _path(config)
    rows = table(
        *("name", "role", "models", "per minute", "tokens/min", "tokens/day", "at once"),
        *("max tokens", "priority"),
    )
    for entry in entries(path):
        numbers = (
            entry.requests_per_minute,
            entry.tokens_per_minute,
            entry.tokens_per_day,
            entry.concurrent_requests,
            entry.max_tokens,
            entry.priority,
        )
        models = "all" if entry.models is None else ", ".join(entry.models)
        shown = ("" if number is None else str(number) for number in numbers)
        rows.add_row(entry.name, entry.role, models, *shown)
    print_table(rows)


def add(
    name: Name,
    admin: Annotated[bool, typer.Option("--admin", help="Also allow admin routes.")] = False,
    models: Annotated[
        str | None, typer.Option(metavar="A,B", help="Models the key may use; all if not given.")
    ] = None,
    rpm: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Maximum requests per minute.")
    ] = None,
    tokens_per_minute: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Maximum tokens per minute, with prompts."),
    ] = None,
    tokens_per_day: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Maximum tokens per day (UTC), with prompts."),
    ] = None,
    concurrent: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Maximum concurrent requests.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Maximum tokens of an answer.")
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(metavar="N", help="Priority of its requests; lower values run first."),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Create a key and print it. It is shown only once: the file stores its hash."""
    from enginebay.config.keys import entry_problems
    from enginebay.server.access import keys_file
    from enginebay.server.access.key_store import keys_path
    from enginebay.server.access.keys import new_key

    settings = read_config(config)
    path = keys_path(settings)
    if any(entry.name == name for entry in entries(path)):
        fail(
            f"{path} already has a key of {name}; `enginebay keys rotate {name}` creates a new one"
        )
    key = new_key()
    entry = keys_file.new_entry(
        name,
        key,
        "admin" if admin else "user",
        models=[model.strip() for model in models.split(",")] if models else None,
        requests_per_minute=rpm,
        tokens_per_minute=tokens_per_minute,
        tokens_per_day=tokens_per_day,
        concurrent_requests=concurrent,
        max_tokens=max_tokens,
        priority=priority,
    )
    if problems := entry_problems(entry):
        fail(problems)
    with _changing(path):
        keys_file.add(path, entry)
    _show(key, f"the key of {name}; it is shown only once, {path} stores its hash")
    stderr().print(who_needs_keys(settings))
    named = {name for model in settings.models for name in (model.name, *model.aliases)}
    if unknown := [model for model in entry.get("models", ()) if model not in named]:
        stderr().print(
            f"the config has no model {', '.join(map(repr, unknown))}, which is right only for "
            "LoRAs and models in `server.model_dir`"
        )


def remove(name: Name, config: ConfigOption = None) -> None:
    """Remove a key: the server stops accepting it."""
    from enginebay.server.access import keys_file

    path = _path(config)
    _require(name, path)
    with _changing(path):
        keys_file.remove(path, name)
    stderr().print(f"the key of {name} was removed from {path}")


def rotate(name: Name, config: ConfigOption = None) -> None:
    """Replace a key by a new one with the same limits, and print it."""
    from enginebay.server.access import keys_file
    from enginebay.server.access.keys import hash_of, new_key

    path = _path(config)
    _require(name, path)
    key = new_key()
    with _changing(path):
        keys_file.set_hash(path, {name: hash_of(key)})
    _show(key, f"the new key of {name}; the old one no longer works")


def _path(config: Path | None) -> Path:
    from enginebay.server.access.key_store import keys_path

    return keys_path(read_config(config))


def entries(path: Path) -> list[KeyEntry]:
    """The entries of a keys file; none if it does not exist yet. Exits with its errors."""
    from enginebay.config.keys import load_keys
    from enginebay.config.problems import ConfigError

    try:
        return load_keys(path) if path.exists() else []
    except ConfigError as error:
        fail(error.problems, code=2)


def _require(name: str, path: Path) -> None:
    names = [entry.name for entry in entries(path)]
    if name not in names:
        fail(f"{path} has no key of {name}; it has keys of: {', '.join(names) or 'nobody'}")


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    """Exit with an error if the file cannot be changed."""
    from enginebay.config.problems import ConfigError

    try:
        yield
    except ConfigError as error:
        fail(error.problems)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}; no key was changed")


def _show(key: str, remark: str) -> None:
    stdout().print(key, soft_wrap=True)
    stderr().print(remark)
