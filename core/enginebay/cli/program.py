"""The program `enginebay`: its commands."""

import errno
import os
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from enginebay.cli import (
    chat,
    config,
    download,
    health,
    inspect_model,
    key_usage,
    keys,
    loading_models,
    models,
    new_plugin,
    plugin_packages,
    plugins,
    replay,
    run,
    serve,
)
from enginebay.cli.console import stderr
from enginebay.plugins import wings_of_enginebay


def program() -> typer.Typer:
    """All commands, as typer runs them."""
    app = typer.Typer(
        name="enginebay",
        help="An OpenAI-compatible server for language models you host yourself.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    app.command("serve")(serve.serve)
    app.command("run")(run.run)
    app.command("chat")(chat.chat)
    app.command("health")(health.health)
    app.command("download")(download.download)
    of_models = typer.Typer(invoke_without_command=True)
    of_models.callback()(models.models)
    of_models.command("list")(models.list_models)
    of_models.command("inspect")(inspect_model.inspect)
    of_models.command("load")(loading_models.load)
    of_models.command("switch")(loading_models.switch)
    of_models.command("unload")(loading_models.unload)
    app.add_typer(of_models, name="models")
    of_plugins = typer.Typer(invoke_without_command=True)
    of_plugins.callback()(plugins.plugins)
    of_plugins.command("list")(plugins.list_plugins)
    of_plugins.command("add")(plugin_packages.add)
    of_plugins.command("remove")(plugin_packages.remove)
    of_plugins.command("formats")(plugins.list_formats)
    of_plugins.command("new")(new_plugin.new)
    app.add_typer(of_plugins, name="plugins")
    of_keys = typer.Typer(help="The API keys of the keys file.", no_args_is_help=True)
    of_keys.command("list")(keys.list_keys)
    of_keys.command("add")(keys.add)
    of_keys.command("remove")(keys.remove)
    of_keys.command("rotate")(keys.rotate)
    of_keys.command("usage")(key_usage.usage)
    app.add_typer(of_keys, name="keys")
    for name, wing in wings_of_enginebay().items():
        try:
            commands = wing.commands()
        except Exception as error:
            stderr().print(f"the wing {name} has no commands: {type(error).__name__}: {error}")
            continue
        if isinstance(commands, typer.Typer):
            app.add_typer(commands, name=name)
        elif commands is not None:
            app.command(name)(commands)
    app.command("replay")(replay.replay)
    of_config = typer.Typer(
        help="Check, show, describe or reload the config.", no_args_is_help=True
    )
    of_config.command("check")(config.check)
    of_config.command("show")(config.show)
    of_config.command("schema")(config.schema)
    of_config.command("reload")(config.reload)
    app.add_typer(of_config, name="config")
    panel = "Short names"
    app.command("list", rich_help_panel=panel)(models.list_models)
    app.command("ps", rich_help_panel=panel)(models.ps)
    app.command("pull", rich_help_panel=panel)(download.download)
    app.command("show", rich_help_panel=panel)(inspect_model.inspect)
    app.command("stop", rich_help_panel=panel)(loading_models.unload)
    return app


def main() -> None:
    """Run the command line. Exit with a plain message if its output or a file cannot be written."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # not every terminal is UTF-8
    try:
        try:
            program()()
        finally:
            if sys.stdout:  # closed streams are None
                sys.stdout.flush()
    except OSError as error:
        if error.errno == errno.ENOENT and error.filename is None:
            sys.exit("the current folder no longer exists; change to another one")
        if error.errno not in _UNWRITABLE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes what is left when it exits
        sys.exit(f"{error.filename or 'the output'} cannot be written: {error.strerror}")


_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"enginebay {version('enginebay')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass
