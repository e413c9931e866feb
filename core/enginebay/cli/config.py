"""`enginebay config`: check, show, schema and reload."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from enginebay.cli.console import fail, stderr, stdout
from enginebay.cli.installing import lacking_libraries
from enginebay.cli.settings import (
    ConfigOption,
    KeyOption,
    UrlOption,
    listening,
    load_plugins,
    read_config,
)

if TYPE_CHECKING:
    from enginebay.config.problems import Problem
    from enginebay.config.schema import Config


def check(config: ConfigOption = None) -> None:
    """Check the config, its plugins, paths, options, keys and libraries, and settings in the models
    folder, without loading a model. All mistakes are reported at once.
    """
    from enginebay.config.load import load_valid_part
    from enginebay.config.problems import ConfigError, further, in_order
    from enginebay.config.wing_sections import active_wings
    from enginebay.models.check_config import check_config, without_saved_kv
    from enginebay.models.files.model_folder import folder_of

    try:
        settings, problems = load_valid_part(config)
    except ConfigError as error:
        fail(error.problems, code=2)
    plugins = load_plugins(settings, quiet=True)
    certificate, of_listening = listening(settings)
    folder = folder_of(settings, plugins)
    wrong, refused = folder.problems()
    found = [*check_config(settings, plugins), *of_listening, *_of_keys(settings), *wrong]
    problems += further(problems, found)
    warnings: list[object] = [*settings.origins.notices, *refused]
    warnings += (
        f"plugin {each.name} ({each.source}): {each.error or each.misfit}"
        for each in plugins.found
        if each.error or each.misfit
    )
    if certificate and (warning := certificate.warning(time.time())):
        warnings.append(warning)
    in_folder = [model.backend for model in folder.models().values()]
    here = [model.backend for model in settings.models]
    lacking = lacking_libraries(here, plugins)
    warnings += (
        f"{folder.root}: {lacks}"
        for lacks in lacking_libraries(in_folder, plugins)
        if lacks not in lacking
    )
    for each in warnings:
        stderr().print(f"warning: {each}", style="yellow")
    if problems or lacking:
        fail([*in_order(problems), *lacking], code=2 if problems else 1)
    names = [model.name for model in settings.models]
    if settings.loading.from_model_dir:
        names += folder.names()
    stdout().print(f"{settings.origins.file} is valid; models: {', '.join(names) or 'none'}")
    wings = ", ".join(wing.name for wing in active_wings(settings, plugins))
    stdout().print(f"wings: {wings or 'none'}")
    if without := without_saved_kv(settings, plugins):
        stdout().print(
            "loading.cache_ram and cache_dir have no effect on models whose backend cannot save "
            f"conversations: {', '.join(without)}"
        )


def _of_keys(config: Config) -> list[Problem]:
    """What is wrong with the keys file, if there is one."""
    from enginebay.config.keys import load_keys
    from enginebay.config.problems import ConfigError
    from enginebay.server.access.key_store import keys_path

    path = keys_path(config)
    try:
        if path.exists():
            load_keys(path)
    except ConfigError as error:
        return error.problems
    return []


def reload(url: UrlOption = None, config: ConfigOption = None, api_key: KeyOption = None) -> None:
    """Have a running server read its config again; needs an admin key.

    Running answers are not disturbed. A config that is invalid changes nothing.
    """
    from enginebay.cli.client import body_of, running_server

    with running_server(url, config, api_key) as http:
        done = body_of(http.post("/v1/config/reload"))
    said = [f"models {what}: {', '.join(done[what])}" for what in _CHANGES if done[what]]
    for line in said or ["no model has changed"]:
        stdout().print(line)
    if done["needs_restart"]:
        stdout().print(f"after a restart: {', '.join(done['needs_restart'])}")


_CHANGES = ("added", "removed", "changed")


def show(config: ConfigOption = None) -> None:
    """Print the config in effect, with defaults, variables and flags; keys are masked."""
    from enginebay.config.show import as_yaml

    print(as_yaml(read_config(config)), end="")


def schema() -> None:
    """Print the JSON schema of the config, for editors."""
    import json

    from enginebay.config.wing_sections import whole_config

    print(json.dumps(whole_config().model_json_schema(), indent=2))
