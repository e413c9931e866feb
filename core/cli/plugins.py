"""`enginebay plugins`."""

from core.cli.console import stdout, table
from core.cli.settings import ConfigOption, load_plugins, read_config


def plugins(config: ConfigOption = None) -> None:
    """List the plugins, and the backends and formats that they register."""
    import logging

    logging.getLogger("core.plugins").addHandler(logging.NullHandler())  # the table says it
    found = load_plugins(read_config(config))
    rows = table("plugin", "version", "source", "state")
    for plugin in found.found:
        state = "blocked in the config" if plugin.blocked else plugin.error or "ok"
        rows.add_row(plugin.name, plugin.version, plugin.source, state)
    console = stdout()
    console.print(rows)
    console.print()
    for kind, names in (
        ("backends", found.backends),
        ("reasoning formats", found.reasoning),
        ("tool formats", found.tools),
    ):
        console.print(f"{kind}: {', '.join(names) or 'none'}")
