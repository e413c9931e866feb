"""Where the values of a config come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from enginebay.config.document import Document
from enginebay.config.problems import KeyPath, Problem, key_text


@dataclass(frozen=True, slots=True)
class Place:
    """Where one model stands in a file beside the config: at `key` of its document."""

    document: Document
    key: KeyPath


@dataclass(frozen=True, slots=True)
class Origins:
    """The file, and the variables and flags that override it.

    `places`: of models that are in other files. `flags`: the values of the flags, by dotted key.
    `moved`: by paths of today the paths that the file has instead. `notices`: what its owner should
    know, although it is no mistake.
    """

    file: Path | None = None
    document: Document | None = None
    overrides: Mapping[KeyPath, str] = field(default_factory=dict)
    places: Mapping[KeyPath, Place] = field(default_factory=dict)
    flags: Mapping[str, object] = field(default_factory=dict)
    moved: Mapping[KeyPath, KeyPath] = field(default_factory=dict)
    notices: Sequence[str] = ()

    def override(self, path: KeyPath) -> str | None:
        """The variable or flag that set the value at `path` or a parent of it."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.overrides:
                return self.overrides[path[:end]]
        return None

    def problem(self, path: KeyPath, message: str) -> Problem:
        """A problem with the value at `path`."""
        path = self._written(path)
        if (override := self.override(path)) is not None:
            return Problem(override, key_text(path), message)
        if place := self.places.get(path[:2]):
            own = (*place.key, *path[2:])
            line = place.document.line(own)
            return Problem(place.document.name, key_text(own), message, line)
        if self.document is None:
            return Problem("", key_text(path), message)
        line = self.document.line(path)
        return Problem(self.document.name, key_text(path), message, line)

    def where(self, path: KeyPath) -> str:
        """`--port`, `ENGINEBAY_SERVER__PORT` or `config.yml line 12`; empty when made in code."""
        path = self._written(path)
        if (override := self.override(path)) is not None:
            return override
        if place := self.places.get(path[:2]):
            own = (*place.key, *path[2:])
            return f"{place.document.name} line {place.document.line(own)}"
        return f"{self.document.name} line {self.document.line(path)}" if self.document else ""

    def _written(self, path: KeyPath) -> KeyPath:
        """The path that the file has for a path of today."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.moved:
                return (*self.moved[path[:end]], *path[end:])
        return path

    def named(self, path: KeyPath) -> str:
        """A key, and its place if there are several files."""
        place = self.places.get(path[:2])
        key = (*place.key, *path[2:]) if place else path
        return f"{key_text(key)} ({self.where(path)})" if self.places else key_text(path)
