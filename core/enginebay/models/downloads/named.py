"""Models by the names that they have on a hub, and those that are here already."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enginebay.config.problems import KeyPath
from enginebay.config.schema import ModelConfig
from enginebay.contract.errors import InvalidRequestError
from enginebay.models.downloads.choose import Form, choose, rank
from enginebay.models.downloads.folder import downloaded

SCHEME = "hf://"
"""What the paths of the config begin with that are names on the hub."""

_OPTIONS = ("draft_model", "mmproj", "adapters")
"""The options of backends that may be names on the hub, or hold some."""

_BEFORE = re.compile(r"hf://|(?:https?://)?(?:www\.)?h(?:ugging)?f(?:ace)?\.co/")
_NAME = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+?)"
    r"(?:/|:(?P<quant>[\w./ -]+)|/(?:(?:blob|resolve)/main/)?(?P<file>[\w./ -]+\.gguf))?",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class HubName:
    """`owner/repo`, maybe with `:quant` (a quant, a model's file, or a branch) or `/file.gguf`."""

    repo_id: str
    quant: str = ""

    @classmethod
    def parse(cls, text: str) -> "HubName":
        """Of what people write or copy. Raises `ValueError` with how it is written."""
        match = _NAME.fullmatch(_BEFORE.sub("", text.strip(), count=1))
        if match is None:
            raise ValueError(
                f"{text!r} is no model on a hub: write owner/repository, "
                "owner/repository:QUANT such as Qwen/Qwen3-8B-GGUF:Q4_K_M, or "
                "owner/repository/FILE.gguf"
            )
        return cls(match["repo"], match["quant"] or match["file"] or "")

    def __str__(self) -> str:
        return f"{self.repo_id}:{self.quant}" if self.quant else self.repo_id


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that was downloaded: the path that its backend is given, and its folder."""

    path: Path
    folder: Path


def hub_names(model: ModelConfig) -> Iterator[tuple[KeyPath, str]]:
    """The names on the hub (`hf://`) that the files of a model are given as, and where."""
    options = {name: model.options.get(name) for name in _OPTIONS}
    yield from _names({"path": model.path, "options": options}, ())


def _names(value: Any, key: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, str) and value.startswith(SCHEME):
        yield key, value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _names(each, (*key, name))


def find_local(models: Path, name: HubName, form: Form | None = None) -> LocalModel | None:
    """The model of that name in the folder of models, complete; None if it is not there.

    Without a quant it is any of that repository, the recommended one if there are several. Reads
    names, sizes and times only; asks no hub.
    """
    found = []
    for folder in downloaded(models, name.repo_id):
        is_branch = bool(name.quant) and folder.revision == name.quant
        with suppress(InvalidRequestError):  # it has others
            choice = choose(name.repo_id, folder.files, "" if is_branch else name.quant, form)
            place = LocalModel(folder.path / choice.path, folder.path)
            found.append((choice, place))
    return min(found, key=lambda each: rank(each[0]))[1] if found else None
