"""`enginebay plugins`: what is installed, what it registers, what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import indent
from typing import TYPE_CHECKING, Annotated

import typer

from enginebay.cli.console import fail, print_table, stdout, table
from enginebay.cli.settings import ConfigOption, load_plugins

if TYPE_CHECKING:
    from enginebay.config.schema import Config
    from enginebay.contract.formats import ReasoningFormat, ToolFormat
    from enginebay.plugins import Plugin


def plugins(context: typer.Context, config: ConfigOption = None) -> None:
    """List, add and remove plugins, or create one."""
    if context.invoked_subcommand is None:
        list_plugins(config)


def list_plugins(config: ConfigOption = None) -> None:
    """List the plugins, what they register, and whether their libraries can be imported.

    Capabilities are those of the models loaded by the server of this config, if it is running.
    """
    from enginebay.cli.client import configured
    from enginebay.cli.libraries import tried
    from enginebay.models.check_config import option_names

    settings = configured(config)
    found = load_plugins(settings, quiet=True)
    rows = table("plugin", "version", "source", "state", "registers")
    for plugin in found.found:
        rows.add_row(plugin.name, plugin.version, plugin.source, *state_of(plugin))
    console = stdout()
    print_table(rows)
    rows = table("backend", "libraries", "capabilities", "options")
    known = _capabilities(settings)
    imported = tried(name for entry in found.backends.values() for name in entry.requires)
    for name, entry in found.backends.items():
        libraries = "; ".join(str(imported[library]) for library in entry.requires)
        rows.add_row(name, libraries, known.get(name), ", ".join(option_names(entry)))
    console.print()
    print_table(rows)
    if not known:
        console.print(
            "\nCapabilities are shown for models loaded by a running server; none is running."
        )
    for name in sorted(set(settings.plugins.blocked) - {plugin.name for plugin in found.found}):
        console.print(f"\n{name} is blocked in the config, but there is no such plugin")


def list_formats(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Show only these formats.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Show what models write in each reasoning and tool format, raw."""
    from enginebay.cli.client import configured

    found = load_plugins(configured(config), quiet=True)
    kinds: tuple[tuple[str, Mapping[str, ReasoningFormat | ToolFormat]], ...] = (
        ("reasoning", found.reasoning),
        ("tools", found.tools),
    )
    known = {name for _, formats in kinds for name in formats}
    if unknown := [name for name in names or () if name not in known]:
        fail(f"there is no format {name}" for name in unknown)
    console = stdout()
    for kind, formats in kinds:
        for name, each in formats.items():
            if not names or name in names:
                console.print(f"{kind}: {name}", style="bold")
                console.print(f"{indent(each.example or '(no example)', '    ')}\n", soft_wrap=True)


def _registers(plugin: Plugin) -> Iterator[str]:
    for kind, names in (
        ("backends", plugin.backends),
        ("reasoning", plugin.reasoning),
        ("tools", plugin.tools),
        ("routes", plugin.routes),
        ("wings", plugin.wings),
        ("hooks", [hook for hook in plugin.hooks if not hook.startswith("register_")]),
    ):
        if names:
            yield f"{kind} {', '.join(names)}"


def state_of(plugin: Plugin) -> tuple[str, str]:
    """Whether it is active and what it registers, or why it is not."""
    if plugin.blocked or plugin.error:
        return "left out", plugin.error or "blocked in the config"
    return "ok" if not plugin.misfit else f"ok, but {plugin.misfit}", "; ".join(_registers(plugin))


def _capabilities(config: Config) -> dict[str, str]:
    """What each backend's models can do, from the running server; known only once loaded."""
    from urllib.parse import quote

    import httpx2

    from enginebay.cli.client import ApiError, address, body_of, cards_of, connect, key_of

    found: dict[str, list[str]] = {}
    try:
        with connect(address(config), key_of(config), config, timeout=10) as client:
            for card in cards_of(client):
                if card.get("state") == "ready" and not card.get("parent"):
                    path = f"/v1/models/{quote(card['id'], safe='')}/inspect"
                    report = body_of(client.get(path))
                    found.setdefault(card["backend"], []).extend(report.get("capabilities", ()))
    except (ApiError, httpx2.TransportError):
        return {}  # there is no server, or it is of another kind
    return {backend: ", ".join(dict.fromkeys(names)) for backend, names in found.items()}
