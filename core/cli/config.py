"""`enginebay config`: check, show, schema and reload."""

import time

from core.cli.console import fail, stderr, stdout
from core.cli.installing import lacking_libraries
from core.cli.keys import entries
from core.cli.settings import (
    ConfigOption,
    KeyOption,
    UrlOption,
    load_plugins,
    read_config,
    require_listening,
    require_valid,
)


def check(config: ConfigOption = None) -> None:
    """Check the config, its plugins, paths, options, keys and libraries, and settings in the models
    folder, without loading a model.
    """
    from core.models.check_config import without_saved_kv
    from core.models.files.model_folder import folder_of
    from core.server.access.key_store import keys_path

    settings = read_config(config)
    plugins = load_plugins(settings)
    require_valid(settings, plugins)
    certificate = require_listening(settings)
    if certificate and (warning := certificate.warning(time.time())):
        stderr().print(f"warning: {warning}", style="yellow")
    entries(keys_path(settings))
    folder = folder_of(settings, plugins)
    wrong, refused = folder.problems()
    for problem in refused:
        stderr().print(f"warning: {problem}", style="yellow")
    if wrong:
        fail(wrong, code=2)
    in_folder = [model.backend for model in folder.models().values()]
    here = [model.backend for model in settings.models if not model.cluster]
    if lacking := lacking_libraries(here, plugins):
        fail(lacking)
    for lacks in lacking_libraries(in_folder, plugins):
        stderr().print(f"warning: {folder.root}: {lacks}", style="yellow")
    names = [model.name for model in settings.models]
    if settings.loading.from_model_dir:
        names += folder.names()
    stdout().print(f"{settings.origins.file} is valid; models: {', '.join(names) or 'none'}")
    if without := without_saved_kv(settings, plugins):
        stdout().print(
            "loading.cache_ram and cache_dir have no effect on models whose backend cannot save "
            f"conversations: {', '.join(without)}"
        )


def reload(url: UrlOption = None, config: ConfigOption = None, api_key: KeyOption = None) -> None:
    """Have a running server read its config again; needs an admin key.

    Running answers are not disturbed. A config that is invalid changes nothing.
    """
    from core.cli.client import require_success, running_server

    with running_server(url, config, api_key) as http:
        answer = http.post("/v1/config/reload")
    require_success(answer)
    done = answer.json()
    said = [f"models {what}: {', '.join(done[what])}" for what in _CHANGES if done[what]]
    for line in said or ["no model has changed"]:
        stdout().print(line)
    if done["needs_restart"]:
        stdout().print(f"after a restart: {', '.join(done['needs_restart'])}")


_CHANGES = ("added", "removed", "changed")


def show(config: ConfigOption = None) -> None:
    """Print the config in effect, with defaults, variables and flags; keys are masked."""
    from core.config.show import as_yaml

    print(as_yaml(read_config(config)), end="")


def schema() -> None:
    """Print the JSON schema of the config, for editors."""
    import json

    from core.config.schema import Config

    print(json.dumps(Config.model_json_schema(), indent=2))
