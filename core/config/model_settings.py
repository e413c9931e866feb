"""Settings of models that lie in the models folder, in files beside them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from core.config.document import Document
from core.config.messages import explain
from core.config.names import merged
from core.config.origins import Origins
from core.config.problems import ConfigError, KeyPath, Problem, in_order
from core.config.schema import ModelConfig

FILE = "enginebay.yml"
"""Settings of everything in its folder; `NAME.yml` has those of `NAME.gguf` beside it."""

_EXPECTED = "; it must have keys of a model, such as:\n\n    options: {context_length: 8192}\n"
_NOT_HERE = {
    "name": "is that of the file or folder; use `aliases` for more names",
    "path": "is where the file or folder lies; delete this",
    "like": "is only for models of the config; delete this",
}


def with_settings(
    found: Mapping[str, Any], aliases: Iterable[str], files: Iterable[Path]
) -> tuple[ModelConfig, Sequence[Origins]]:
    """The model `found`, with these other names and the settings of the files, the last first.

    Also returns where each file's values are. Blocks briefly. `ConfigError` with all that is wrong
    with the files.
    """
    origins: list[Origins] = []
    problems: list[Problem] = []
    data: dict[Any, Any] = dict(found)
    for file in files:
        try:
            document = Document(file, expected=_EXPECTED)
        except ConfigError as error:
            problems += error.problems
            continue
        origins.append(Origins(file, document))
        problems += document.problems
        alone = list(_problems_alone(origins[-1], document.data, found))
        problems += alone
        if not alone:
            data = merged(data, document.data)
    if problems:
        raise ConfigError(in_order(problems))
    data["aliases"] = list(dict.fromkeys([*aliases, *data.get("aliases", ())]))
    return ModelConfig.model_validate(data), origins


def _problems_alone(
    origins: Origins, data: Mapping[Any, Any], found: Mapping[str, Any]
) -> Iterable[Problem]:
    """What is wrong with one file."""
    for key, message in _NOT_HERE.items():
        if key in data:
            yield origins.problem((key,), message)
    try:
        ModelConfig.model_validate({**found, **data})
    except ValidationError as error:
        for path, message in explain(error, {**found, **data}, ModelConfig.model_json_schema()):
            if path[:1] not in {(key,) for key in _NOT_HERE}:
                yield origins.problem(path, message)


def placed(files: Sequence[Origins], path: KeyPath, message: str) -> Problem:
    """A problem in the last file that sets the value."""
    for origins in reversed(files):
        if origins.document and path[0] in origins.document.data:
            return origins.problem(path, message)
    return Problem("", "", message)
