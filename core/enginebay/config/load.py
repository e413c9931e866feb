"""Loads the config: the file, overridden by environment variables, then by flags."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from enginebay.config.document import FIRST_MODEL, Document
from enginebay.config.environment import Unusable, decoded, variables, with_value
from enginebay.config.messages import explain
from enginebay.config.names import name_problems, without_likes
from enginebay.config.origins import Origins, Place
from enginebay.config.problems import ConfigError, KeyPath, Problem, in_order, key_text
from enginebay.config.schema import Config
from enginebay.config.section import Section
from enginebay.config.tabbyapi import settings_of_tabbyapi
from enginebay.config.walk import Schema, existing
from enginebay.config.wing_sections import (
    moved_in_models,
    whole_config,
    whole_model,
    with_moved_keys,
    without_absent_wings,
)
from enginebay.plugins import wings_of_enginebay

DEFAULT_PATH = Path("config.yml")
MODELS = "models.d"
"""The folder beside the config whose files have more models, one or a list of them each."""

S = TypeVar("S", bound=Section)

_EXPECTED = f"; it must have the keys of a model, or a list of models:\n{FIRST_MODEL}"


def load_config(path: Path | None, overrides: Mapping[str, object] | None = None) -> Config:
    """Read and validate a config file, `config.yml` by default, and `models.d/*.yml` beside it.

    `overrides` are values of flags by dotted key: `server.port` is the flag `--port`. Raises
    `ConfigError` with all problems.
    """
    config, problems = load_valid_part(path, overrides)
    if problems:
        raise ConfigError(problems)
    return config


def load_valid_part(
    path: Path | None, overrides: Mapping[str, object] | None = None
) -> tuple[Config, list[Problem]]:
    """Return the config without its wrong values, and all its problems.

    Raises `ConfigError` only if the file itself cannot be read.
    """
    path = path or DEFAULT_PATH
    document = Document(path)
    problems = list(document.problems)
    kind = whole_config()
    schema = kind.model_json_schema()
    data, places = _with_models(document.data, path.parent / MODELS, problems)
    set_by: dict[KeyPath, str] = {}
    for name, key, value in _settings(overrides or {}, schema, problems):
        try:
            data = with_value(data, key, value)
            set_by[key] = name
        except Unusable as error:
            problems.append(Problem(name, key_text(key), str(error)))
    data, notices = without_absent_wings(data)
    wings = wings_of_enginebay().values()
    data, moved = with_moved_keys(data, wings)
    in_models, notices_of_models = moved_in_models(data, wings)
    origins = Origins(path, document, set_by, places, overrides or {}, moved | in_models)
    notices += (str(origins.problem(new, f"this key is now `{key_text(new)}`")) for new in moved)
    notices += (str(origins.problem(*each)) for each in notices_of_models)
    origins = replace(origins, notices=notices)
    of_names = list(name_problems(data, origins.named))
    problems += [origins.problem(*each) for each in of_names]
    unlike = {path[:2] for path, _ in of_names if path[-1] == "like"}
    of_tabbyapi = list(settings_of_tabbyapi(data))
    problems += [origins.problem(*each) for each in of_tabbyapi]
    foreign = {path[:1] for path, _ in of_tabbyapi}
    try:
        config = kind.model_validate(data)
    except ValidationError as error:
        found = explain(error, data, schema)
        problems += [
            origins.problem(path, message)
            for path, message in found
            if (path or not of_names) and path[:2] not in unlike and path not in foreign
        ]
        config = _valid_part(data)
    config.use_origins(origins)
    return config, in_order(problems)


def _valid_part(data: Mapping[Any, Any]) -> Config:
    """The config without wrong values. All models stay, with other values for those they need."""
    entries = data.get("models")
    models = [
        _without_mistakes(
            whole_model(),
            each if isinstance(each, dict) else {},
            dict.fromkeys(("name", "backend"), f"model {index}"),
        )
        for index, each in enumerate(without_likes(entries if isinstance(entries, list) else ()))
    ]
    rest = {key: value for key, value in data.items() if key != "models"}
    return _without_mistakes(whole_config(), rest, {}).model_copy(update={"models": models})


def _without_mistakes(kind: type[S], data: Any, instead: Mapping[str, Any]) -> S:
    """A section of this data, where values that are wrong are left out, or have others instead."""
    while True:
        try:
            return kind.model_validate(data)
        except ValidationError as error:
            # Of a list, all is left out: without one item the others would have new places.
            wrong = {
                tuple(takewhile(lambda part: isinstance(part, str), existing(data, each["loc"])))
                for each in error.errors(include_url=False, include_context=False)
            }
            before = data
            for path in wrong:
                data = _without(data, path)
            data = {**instead, **data}
            if data == before:  # it is of no value, but of all together
                return kind.model_validate(instead)


def _without(data: Mapping[Any, Any], path: KeyPath) -> dict[Any, Any]:
    """A copy of the data without the value at `path`, if it has one."""
    if not path or path[0] not in data:
        return dict(data)
    rest = {key: value for key, value in data.items() if key != path[0]}
    return {**rest, path[0]: _without(data[path[0]], path[1:])} if path[1:] else rest


def read_again(config: Config) -> Config:
    """The config as its files, variables and the same flags have it now.

    Raises `ConfigError` with all problems.
    """
    origins = config.origins
    if origins.file is None:
        raise ConfigError([Problem("", "", "the server was started without a config file")])
    return load_config(origins.file, origins.flags)


def _with_models(
    data: dict[Any, Any], folder: Path, problems: list[Problem]
) -> tuple[Any, dict[KeyPath, Place]]:
    """The data with the models of a folder's files behind those it has, and where those stand."""
    models = data.get("models")
    if not isinstance(models, list | None):
        return data, {}
    models = list(models or ())
    places: dict[KeyPath, Place] = {}
    for file in sorted([*folder.glob("*.yml"), *folder.glob("*.yaml")]):
        try:
            document = Document(file, expected=_EXPECTED, lists=True)
        except ConfigError as error:
            problems += error.problems
            continue
        problems += document.problems
        for key, model in _models_of(document.data):
            places["models", len(models)] = Place(document, key)
            models.append(model)
    return {**data, "models": models} if places else data, places


def _models_of(data: Any) -> Iterator[tuple[KeyPath, Any]]:
    """The models of a file that is one, a list of them, or such a list under `models`."""
    above: KeyPath = ()
    if isinstance(data, dict) and list(data) == ["models"] and isinstance(data["models"], list):
        above, data = ("models",), data["models"]
    if not isinstance(data, list):
        yield (), data
        return
    for index, model in enumerate(data):
        yield (*above, index), model


def _settings(
    overrides: Mapping[str, object], schema: Schema, problems: list[Problem]
) -> Iterator[tuple[str, KeyPath, object]]:
    """Overrides of the file in ascending precedence: source, key path, value."""
    for name, key, text in variables(os.environ):
        try:
            yield name, key, decoded(text, key, schema)
        except Unusable as error:
            problems.append(Problem(name, key_text(key), str(error)))
    for dotted, value in overrides.items():
        key = tuple(dotted.split("."))
        yield "--" + str(key[-1]).replace("_", "-"), key, value
