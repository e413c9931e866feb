"""`enginebay config`: check, show and schema."""

from core.cli.console import stdout
from core.cli.keys import entries
from core.cli.settings import (
    ConfigOption,
    load_plugins,
    read_config,
    require_certificate,
    require_valid,
)


def check(config: ConfigOption = None) -> None:
    """Check the config, its plugins, paths, options and keys without loading a model."""
    from core.server.access.key_store import keys_path

    settings = read_config(config)
    require_valid(settings, load_plugins(settings))
    require_certificate(settings)
    entries(keys_path(settings))
    names = ", ".join(model.name for model in settings.models) or "none"
    stdout().print(f"{settings.origins.file} is valid; models: {names}")


def show(config: ConfigOption = None) -> None:
    """Print the config in effect, with defaults, variables and flags; keys are masked."""
    from core.config.show import as_yaml

    print(as_yaml(read_config(config)), end="")


def schema() -> None:
    """Print the JSON schema of the config, for editors."""
    import json

    from core.config.schema import Config

    print(json.dumps(Config.model_json_schema(), indent=2))
