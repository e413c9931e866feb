"""The sections of the config that belong to wings: the whole config, and keys that have moved."""

from collections.abc import Iterable
from functools import cache
from itertools import product
from typing import Any

from pydantic import Field, create_model, model_validator

from enginebay.config.environment import with_value
from enginebay.config.names import without_likes
from enginebay.config.problems import KeyPath
from enginebay.config.schema import Config, ModelConfig
from enginebay.config.walk import existing
from enginebay.contract.wing import Wing
from enginebay.plugins import WINGS, Plugins, name_of, why_absent, wings_of_enginebay


@cache
def whole_config() -> type[Config]:
    """The class of the whole file: `Config` with a section for each installed wing that has one.

    A section that the file does not have is None.
    """
    wings = [wing for wing in wings_of_enginebay().values() if wing.settings]
    sections: dict[str, Any] = {
        wing.name: (
            wing.settings | None,
            Field(None, description=(wing.settings.__doc__ or "").partition("\n")[0]),
        )
        for wing in wings
        if wing.settings
    }

    def use_moved_keys(data: Any) -> Any:
        return with_moved_keys(data, wings)[0]

    validators: dict[str, Any] = {"use_moved_keys": model_validator(mode="before")(use_moved_keys)}
    models: Any = (list[whole_model()], Config.model_fields["models"])  # type: ignore[misc]
    return create_model(
        "Config", __base__=Config, __validators__=validators, models=models, **sections
    )


@cache
def whole_model() -> type[ModelConfig]:
    """The class of a model's entry: `ModelConfig`, which also takes what wings had there before."""
    wings = [wing for wing in wings_of_enginebay().values() if wing.model_settings]
    sections: dict[str, Any] = {
        wing.name: (
            wing.model_settings | None,
            Field(
                None,
                description=f"The form that `backend: {wing.name}` had before.",
                exclude=True,  # `translate` has made options of it
                json_schema_extra={"deprecated": True},
            ),
        )
        for wing in wings
        if wing.model_settings
    }

    def translate(model: ModelConfig) -> ModelConfig:
        for wing in wings:
            if (section := getattr(model, wing.name)) is not None:
                wing.translate_model(model, section)
                setattr(model, wing.name, None)
                model.model_fields_set.discard(wing.name)
        return model

    validators: dict[str, Any] = {"translate": model_validator(mode="after")(translate)}
    return create_model("ModelConfig", __base__=ModelConfig, __validators__=validators, **sections)


def moved_in_models(
    data: Any, wings: Iterable[Wing]
) -> tuple[dict[KeyPath, KeyPath], list[tuple[KeyPath, str]]]:
    """By each new path of a model with an old section the old path, and what its owner should know.

    The notices are only about entries that have the section themselves, not by `like`.
    """
    found = data.get("models") if isinstance(data, dict) else None
    entries = found if isinstance(found, list) else []
    moved: dict[KeyPath, KeyPath] = {}
    notices: list[tuple[KeyPath, str]] = []
    for wing, (index, whole) in product(wings, enumerate(without_likes(entries))):
        keys = wing.moved_in_models
        if not (keys and isinstance(whole, dict) and whole.get(wing.name) is not None):
            continue
        for old, new in keys.items():
            moved["models", index, *new.split(".")] = ("models", index, old)
        if wing.name in entries[index]:
            now = ", ".join(f"`{old}` is now `{new}`" for old, new in keys.items())
            message = f"write `backend: {wing.name}` instead; {now}"
            notices.append((("models", index, wing.name), message))
    return moved, notices


def with_moved_keys(data: Any, wings: Iterable[Wing]) -> tuple[Any, dict[KeyPath, KeyPath]]:
    """The data with old keys where they belong now, and by each new path the old one.

    An old key has no effect if the new one is there, too.
    """
    moved: dict[KeyPath, KeyPath] = {}
    for wing in wings:
        for before, now in wing.moved.items():
            section, old = before.split(".")
            inside = data.get(section) if isinstance(data, dict) else None
            if not isinstance(inside, dict) or old not in inside:
                continue
            value, new = inside[old], tuple(now.split("."))
            rest = {name: each for name, each in inside.items() if name != old}
            data = {**data, section: rest}
            if value is not None and len(existing(data, new)) < len(new):
                data = with_value(data, new, value)
            moved[new] = (section, old)
    return data, moved


def without_absent_wings(data: Any) -> tuple[Any, list[str]]:
    """The data without the sections of wings that cannot be used, and what these need."""
    sections = {name_of(package): package for package in WINGS}
    absent = {
        name: f"the section `{name}` needs the package {sections[name]}, {reason}"
        for name in (data if isinstance(data, dict) else ())
        if name in sections and (reason := why_absent(sections[name]))
    }
    rest = {key: value for key, value in data.items() if key not in absent} if absent else data
    return rest, list(absent.values())


def active_wings(config: Config, plugins: Plugins) -> list[Wing]:
    """The wings of a server: all that are registered, except APIs that the config leaves out."""
    apis = config.server.apis
    return [
        wing
        for wing in plugins.wings.values()
        if apis is None or wing.name in apis or not wing.is_api
    ]
