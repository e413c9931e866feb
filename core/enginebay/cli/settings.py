"""The config of a command: loaded and checked, or its problems printed and exit code 2."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from enginebay.cli.console import fail

if TYPE_CHECKING:
    from enginebay.config.problems import Problem
    from enginebay.config.schema import Config, ModelConfig
    from enginebay.plugins import Plugins
    from enginebay.server.http.certificate import Certificate

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="PATH", envvar="ENGINEBAY_CONFIG", help="Config file. [config.yml]"
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        metavar="KEY", envvar="ENGINEBAY_API_KEY", help="API key of the server, if it requires one."
    ),
]

HubTokenOption = Annotated[
    str | None,
    typer.Option(
        "--token", envvar="HF_TOKEN", help="Hub token, for gated and private repositories."
    ),
]

UrlOption = Annotated[str | None, typer.Option(metavar="URL", help="URL of a running server.")]


def read_config(path: Path | None, overrides: Mapping[str, object] | None = None) -> Config:
    """The config, valid by itself. `overrides`: flags by dotted key, None for one not given."""
    from enginebay.config.load import load_config
    from enginebay.config.problems import ConfigError

    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    try:
        return load_config(path, given)
    except ConfigError as error:
        fail(error.problems, code=2)


def load_plugins(config: Config, *, quiet: bool = False) -> Plugins:
    """The plugins of a config. `quiet`: do not also log those left out."""
    from enginebay.plugins import Plugins

    if quiet:
        logging.getLogger("enginebay.plugins").addHandler(logging.NullHandler())
    return Plugins(folder=plugins_folder(config), blocked=config.plugins.blocked)


def plugins_folder(config: Config) -> Path:
    """The folder of single-file plugins."""
    from enginebay.config.schema import resolved_path

    return Path(resolved_path(config.plugins.folder, config.base))


def model_at(path: Path, backend: str | None, plugins: Plugins) -> ModelConfig:
    """The model at a path, for this backend or the first one that recognises it."""
    from enginebay.config.problems import ConfigError
    from enginebay.models.files import model_folder

    try:
        return model_folder.model_at(path, plugins, backend)
    except ConfigError as error:
        fail(error.problems, code=2)


def require_listening(config: Config) -> None:
    """Exit if the config's certificate, or its unix socket, cannot be used."""
    _, problems = listening(config)
    if problems:
        fail(problems, code=2)


def listening(config: Config) -> tuple[Certificate | None, list[Problem]]:
    """The config's certificate, if it has one, and what is wrong with it or the unix socket."""
    from enginebay.config.problems import ConfigError
    from enginebay.server.http.certificate import certificate_of
    from enginebay.server.http.sockets import path_problem, unix_path

    path = unix_path(config)
    problem = path and path_problem(path)
    problems = [config.origins.problem(("server", "unix_socket"), problem)] if problem else []
    try:
        return certificate_of(config), problems
    except ConfigError as error:
        return None, [*problems, *error.problems]


def require_valid(config: Config, plugins: Plugins) -> None:
    """Exit if a model of the config cannot be loaded with these plugins."""
    from enginebay.models.check_config import check_config

    if problems := check_config(config, plugins):
        fail(problems, code=2)
