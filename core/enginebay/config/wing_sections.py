"""The sections of the config that belong to wings: the whole config, and keys that have moved."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from pydantic import Field, create_model, model_validator

from enginebay.config.environment import with_value
from enginebay.config.problems import KeyPath
from enginebay.config.schema import Config
from enginebay.contract.wing import Wing
from enginebay.plugins import WINGS, is_there, name_of, wings_of_enginebay


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
    return create_model("Config", __base__=Config, __validators__=validators, **sections)


def with_moved_keys(data: Any, wings: Iterable[Wing]) -> tuple[Any, dict[KeyPath, KeyPath]]:
    """The data with old keys where they belong now, and by each new path the old one.

    An old key has no effect if the new one is there, too.
    """
    moved: dict[KeyPath, KeyPath] = {}
    for wing in wings:
        for dotted, key in wing.moved.items():
            section, old = dotted.split(".")
            inside = data.get(section) if isinstance(data, dict) else None
            if not isinstance(inside, dict) or old not in inside:
                continue
            value = inside[old]
            rest = {name: each for name, each in inside.items() if name != old}
            data = {**data, section: rest}
            there = data.get(wing.name)
            if value is not None and not (isinstance(there, dict) and key in there):
                data = with_value(data, (wing.name, key), value)
            moved[wing.name, key] = (section, old)
    return data, moved


def without_absent_wings(data: Any) -> tuple[Any, list[str]]:
    """The data without the sections of wings that are not installed, and what these need."""
    absent = [
        (name_of(package), package)
        for package in WINGS
        if isinstance(data, dict) and name_of(package) in data and not is_there(package)
    ]
    rest = (
        {key: value for key, value in data.items() if key not in dict(absent)} if absent else data
    )
    return rest, [
        f"the section `{name}` needs the package {package}, which is not installed"
        for name, package in absent
    ]
