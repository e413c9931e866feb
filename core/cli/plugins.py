"""`enginebay plugins`."""

from core.cli.console import stdout, table
from core.cli.settings import ConfigOption, load_plugins, read_config


def plugins(config: ConfigOption = None) -> None:
    """List the plugins, and the backends and formats that they register."""
    import logging

    logging.getLogger("core.plugins").addHandler(logging.NullHandler())  # the table says it
    found = load_plugins(read_config(config))
    rows = table("plugin", "version", "source", "registers", "state")
    for plugin in found.found:
        state = "blocked in the config" if plugin.blocked else plugin.error or "ok"
        names = ", ".join(plugin.registers)
        rows.add_row(plugin.name, plugin.version, plugin.source, names, state)
    stdout().print(rows)
