"""Settings that lie in the models folder, next to model files.

They may have come with the model, so they are a stranger's data: only harmless settings have an
effect. All others belong into an entry of the config, which only the server's owner writes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from enginebay.config.document import Document
from enginebay.config.messages import explain
from enginebay.config.names import merged
from enginebay.config.origins import Origins
from enginebay.config.paths import is_inside
from enginebay.config.problems import ConfigError, KeyPath, Problem, in_order
from enginebay.config.schema import ModelConfig
from enginebay.config.walk import nearest

FILE = "enginebay.yml"
"""Settings of everything in its folder; `NAME.yml` has those of `NAME.gguf` beside it."""

ACCEPTED = (
    "chat_template",
    "chat_template_content_format",
    "overflow",
    "continue_assistant",
    "response_role",
    "reasoning",
    "reasoning_start",
    "reasoning_field",
    "reasoning_budget",
    "reasoning_budget_message",
    "template_vars",
    "force_template_vars",
    "tools",
    "parse_calls",
    "tools_in_reasoning",
    "sampling",
    "options",
)
"""The keys of a model that a settings file may have. None of them runs code, reads a file outside
the folder, takes a name, loads a model or affects another model."""

ACCEPTED_OPTIONS = ("context_length",)
"""The same for `options`, whatever the backend."""

_EXPECTED = "; it must have keys of a model, such as `options: {context_length: 8192}`"
_ENTRY = "add an entry for this model to config.yml or to a file in models.d/."
_REFUSED = f"ignored, because files in the models folder may not set it. To set it, {_ENTRY}"
_NO_TEMPLATE = (
    "ignored, because it is neither a .jinja file in the folder of this settings file nor the name "
    f"of a shipped template. To use another template, {_ENTRY}"
)
_MOST, _LONGEST = 200, 500  # reports of a file; characters of one


@dataclass(frozen=True, slots=True)
class Settings:
    """A model with its settings files.

    `files`: where the values are. `wrong`: what is wrong with the files, in which case `config` is
    without them. `refused`: settings without effect.
    """

    config: ModelConfig
    files: Sequence[Origins] = ()
    wrong: Sequence[Problem] = ()
    refused: Sequence[Problem] = ()


def with_settings(
    found: Mapping[str, Any],
    aliases: Iterable[str],
    files: Iterable[Path],
    templates: Mapping[str, str],
) -> Settings:
    """The model `found`, with these other names and the settings of the files, the last first.

    `templates`: the chat templates that settings may name, and what stands for each in a config.
    Blocks briefly.
    """
    origins: list[Origins] = []
    wrong: list[Problem] = []
    refused: list[Problem] = []
    data: dict[Any, Any] = dict(found)
    for file in files:
        try:
            document = _read(file)
        except ConfigError as error:
            wrong += error.problems
            continue
        own = Origins(file, document)
        origins.append(own)
        wrong += document.problems
        accepted, ignored = _accepted(own, document.data, templates)
        refused += ignored[:_MOST]
        if more := len(ignored[_MOST:]):
            refused.append(Problem(document.name, "", f"{more} more settings are ignored"))
        alone = list(_problems_alone(own, accepted, found))
        wrong += alone
        if not alone:
            data = merged(data, accepted)
    if wrong:
        data = dict(found)
    config = ModelConfig.model_validate({**data, "aliases": list(dict.fromkeys(aliases))})
    return Settings(config, origins, _readable(in_order(wrong))[:_MOST], _readable(refused))


def _read(file: Path) -> Document:
    if not is_inside(file, file.parent):
        message = "this is a link to a file outside its folder; replace it with a copy of that file"
        raise ConfigError([Problem(str(file), "", message)])
    return Document(file, expected=_EXPECTED, foreign=True)


def _accepted(
    origins: Origins, data: Mapping[Any, Any], templates: Mapping[str, str]
) -> tuple[dict[str, Any], list[Problem]]:
    """The settings of one file that have an effect, and a problem for each of the others."""
    assert origins.file
    accepted: dict[str, Any] = {}
    refused: list[Problem] = []
    for key, value in data.items():
        if key not in ACCEPTED:
            hint = "" if key in ModelConfig.model_fields else _spelling(key)
            refused.append(origins.problem((str(key),), f"{_REFUSED}{hint}"))
        elif key == "options" and isinstance(value, dict):
            accepted[key] = {k: v for k, v in value.items() if k in ACCEPTED_OPTIONS}
            others = (str(option) for option in value if option not in ACCEPTED_OPTIONS)
            refused += [origins.problem((key, option), _REFUSED) for option in others]
        elif key == "chat_template" and isinstance(value, str):
            if template := _template(value, origins.file.parent, templates):
                accepted[key] = template
            else:
                refused.append(origins.problem((key,), _NO_TEMPLATE))
        else:
            accepted[key] = value
    return accepted, refused


def _spelling(key: object) -> str:
    found = nearest(str(key), list(ACCEPTED))
    return f" Or{found[1:]}" if found.startswith("; did you mean") else ""


def _template(name: str, folder: Path, templates: Mapping[str, str]) -> str | None:
    """A template of that name: a file in the folder or below it, or one of `templates`."""
    path = folder / name
    try:
        if path.suffix in (".jinja", ".jinja2") and path.is_file():
            own = not Path(name).is_absolute() and ".." not in Path(name).parts
            return str(path.resolve()) if own and is_inside(path, folder) else None
    except OSError:  # a name that no file can have
        return None
    return templates.get(name.removesuffix(".jinja"))


def _problems_alone(
    origins: Origins, data: Mapping[str, Any], found: Mapping[str, Any]
) -> Iterable[Problem]:
    """What is wrong with the accepted settings of one file."""
    try:
        ModelConfig.model_validate({**found, **data})
    except ValidationError as error:
        for path, message in explain(error, {**found, **data}, ModelConfig.model_json_schema()):
            yield origins.problem(path, message)
        return
    for option, value in (data.get("options") or {}).items():
        if type(value) not in (int, type(None)):
            yield origins.problem(("options", option), "must be a whole number")


def placed(files: Sequence[Origins], path: KeyPath, message: str) -> Problem:
    """A problem in the last file that sets the value."""
    for origins in reversed(files):
        if origins.document and path[0] in origins.document.data:
            return origins.problem(path, message)
    return Problem("", "", message)


def _readable(problems: Iterable[Problem]) -> list[Problem]:
    """Problems whose texts, which quote the file, fit a line of a log each."""
    return [
        replace(problem, key=_line(problem.key), message=_line(problem.message))
        for problem in problems
    ]


def _line(text: str) -> str:
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in short)
