"""Loads the config: the file, overridden by environment variables, then by flags."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from core.config.document import Document
from core.config.environment import Unusable, decoded, variables, with_value
from core.config.messages import explain
from core.config.names import name_problems
from core.config.origins import Origins
from core.config.problems import ConfigError, KeyPath, Problem, in_order, key_text
from core.config.schema import Config
from core.config.tabbyapi import settings_of_tabbyapi
from core.config.walk import Schema

DEFAULT_PATH = Path("config.yml")


def load_config(path: Path | None, overrides: Mapping[str, object] | None = None) -> Config:
    """Read and validate a config file, `config.yml` by default.

    `overrides` are values of flags by dotted key: `server.port` is the flag `--port`. Raises
    `ConfigError` with all problems.
    """
    path = path or DEFAULT_PATH
    document = Document(path)
    problems = list(document.problems)
    schema = Config.model_json_schema()
    data: Any = document.data
    set_by: dict[KeyPath, str] = {}
    for name, key, value in _settings(overrides or {}, schema, problems):
        try:
            data = with_value(data, key, value)
            set_by[key] = name
        except Unusable as error:
            problems.append(Problem(name, key_text(key), str(error)))
    origins = Origins(path, document, set_by)
    of_names = list(name_problems(data))
    problems += [origins.problem(*each) for each in of_names]
    unlike = {path[:2] for path, _ in of_names if path[-1] == "like"}
    of_tabbyapi = list(settings_of_tabbyapi(data))
    problems += [origins.problem(*each) for each in of_tabbyapi]
    foreign = {path[:1] for path, _ in of_tabbyapi}
    config = Config()
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        found = explain(error, data, schema)
        problems += [
            origins.problem(path, message)
            for path, message in found
            if (path or not of_names) and path[:2] not in unlike and path not in foreign
        ]
    if problems:
        raise ConfigError(in_order(problems))
    config._origins = origins
    return config


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
