"""`enginebay plugins`: what is installed, what it registers, what is missing."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from core.cli.console import stdout, table
from core.cli.settings import ConfigOption, load_plugins

if TYPE_CHECKING:
    from core.plugins import Plugin


def plugins(context: typer.Context, config: ConfigOption = None) -> None:
    """List the plugins, or make one."""
    if context.invoked_subcommand is None:
        list_plugins(config)


def list_plugins(config: ConfigOption = None) -> None:
    """List the plugins, what they register, and whether the backends' libraries import."""
    from core.cli.client import configured
    from core.config.check import option_names

    settings = configured(config)
    found = load_plugins(settings, quiet=True)
    rows = table("plugin", "version", "source", "state", "registers")
    for plugin in found.found:
        registers = "; ".join(_registers(plugin))
        rows.add_row(plugin.name, plugin.version, plugin.source, _state(plugin), registers)
    console = stdout()
    console.print(rows)
    rows = table("backend", "libraries", "options")
    for name, entry in found.backends.items():
        libraries = "; ".join(map(_library, entry.requires))
        rows.add_row(name, libraries, ", ".join(option_names(entry)))
    console.print()
    console.print(rows)
    for name in sorted(set(settings.plugins.blocked) - {plugin.name for plugin in found.found}):
        console.print(f"\n{name} is blocked in the config, but there is no such plugin")


def _registers(plugin: Plugin) -> Iterator[str]:
    for kind, names in (
        ("backends", plugin.backends),
        ("reasoning", plugin.reasoning),
        ("tools", plugin.tools),
        ("hooks", [hook for hook in plugin.hooks if not hook.startswith("register_")]),
    ):
        if names:
            yield f"{kind} {', '.join(names)}"


def _state(plugin: Plugin) -> str:
    return "blocked in the config" if plugin.blocked else plugin.error or "ok"


def _library(name: str) -> str:
    """What comes of importing a library; only that tells, as a file may lack its own libraries."""
    try:
        module = importlib.import_module(name)
    except Exception as error:
        return f"{name} does not import ({type(error).__name__}: {error})"
    return f"{name} {getattr(module, '__version__', '')}".rstrip()
