"""Presets of sampling params: TabbyAPI's files in `sampler_overrides/` beside the config file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from enginebay.config.document import Document
from enginebay.config.origins import Origins
from enginebay.config.problems import ConfigError, Problem, in_order
from enginebay.models.overrides import Overrides, OverridesError

FOLDER = "sampler_overrides"
EXPECTED = "; it must name sampling params and their overrides:\n\n    top_k:\n      override: 40\n"


@dataclass(frozen=True, slots=True)
class Preset:
    """A named set of overrides; without a name if not from a file."""

    name: str | None = None
    overrides: Overrides = field(default_factory=Overrides)


def preset_files(base: Path) -> dict[str, Path]:
    """Every preset by its name, which is that of its file. `base`: the config file's folder."""
    files = sorted((base / FOLDER).glob("*.y*ml"))
    return {path.stem: path for path in files if path.stem.isprintable()}


def load_preset(name: str, base: Path) -> Preset:
    """Load a preset. Raises `ConfigError` if it does not exist or is invalid."""
    path = preset_files(base).get(name)
    if path is None:
        raise ConfigError(
            [Problem(str(base / FOLDER / f"{name}.yml"), "", "there is no such file")]
        )
    document = Document(path, expected=EXPECTED)
    origins = Origins(path, document)
    problems = list(document.problems)
    try:
        overrides = Overrides(_with_text_keys(document.data))
    except OverridesError as error:
        problems += [origins.problem(*problem) for problem in error.problems]
    if problems:
        raise ConfigError(in_order(problems))
    return Preset(name, overrides)


def _with_text_keys(data: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): entry for name, entry in data.items()}
