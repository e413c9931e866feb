"""A YAML file: its data, and the line of every key."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML, MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.reader import ReaderError

from enginebay.config.paths import is_special
from enginebay.config.problems import ConfigError, KeyPath, Problem, key_text
from enginebay.config.yaml_hints import hint

FIRST_MODEL = """
    models:
      - name: my-model
        backend: its-backend  # one that `enginebay plugins list` shows
        path: /path/to/the/model
"""


_FOREIGN_BYTES, _FOREIGN_VALUES, _FOREIGN_DEPTH, _FOREIGN_DIGITS = 65_536, 2_000, 20, 100
"""The limits of a file that a stranger may have written."""

EXPECTED = f" (server, models or plugins); a first model:\n{FIRST_MODEL}"


class Document:
    """A parsed file: `data`, and duplicate keys as `problems`.

    `expected`: appended to the error for an empty file. `lists`: it may be a list, too. `foreign`:
    a stranger may have written the file, so its size, depth and numbers are limited, and it has no
    anchors: aliases make few bytes mean a lot. Raises `ConfigError` if the file cannot be used at
    all.
    """

    def __init__(
        self,
        path: Path,
        *,
        expected: str = EXPECTED,
        lists: bool = False,
        foreign: bool = False,
    ) -> None:
        self.name = str(path)
        self._expected = expected
        self._foreign = foreign
        self._kinds = (MappingNode, SequenceNode) if lists else (MappingNode,)
        self._text = self._read(path)
        yaml = YAML(typ="safe", pure=True)
        yaml.allow_duplicate_keys = True  # every one of them is found below, not only the first
        yaml.composer.warn_double_anchors = False  # legal, and no reason for a warning
        try:
            self._root: Node = yaml.compose(self._text)
            self._require_data()
            if foreign:
                self._require_small()
            self.problems = list(self._repeated_keys(self._root, (), (), set()))
            self.data: Any = yaml.constructor.construct_document(self._root)
        except MarkedYAMLError as error:
            raise self._syntax_error(error) from error
        except ReaderError as error:
            line = self._text.count("\n", 0, error.position) + 1
            message = f"the character U+{error.character:04X} is not allowed in YAML; delete it"
            raise self._error(message, line) from error
        except ValueError as error:  # invalid values that look like dates or numbers
            raise self._error(f"{error}; put the value in quotes if it is text") from error
        except ConfigError:
            raise
        except Exception as error:  # ruamel: TypeError for `? [[]]`, RecursionError, ...
            raise self._error(f"cannot parse this as YAML: {error}") from error

    def line(self, path: KeyPath) -> int:
        """The line, from 1, of the key at `path`, or of its nearest existing parent."""
        node, line = self._root, 1
        for part in path:
            found = _child(node, part)
            if found is None:
                break
            node, line = found
        return line

    def _read(self, path: Path) -> str:
        try:
            if is_special(path):
                raise self._error("this is a pipe, a device or a socket; it must be a file")
            with path.open("rb") as file:
                content = file.read(_FOREIGN_BYTES + 1 if self._foreign else -1)
            if self._foreign and len(content) > _FOREIGN_BYTES:
                raise self._error(f"the file is larger than {_FOREIGN_BYTES} bytes; shorten it")
            return content.decode("utf-8-sig")
        except FileNotFoundError as error:
            message = (
                f"no such file in {Path.cwd()}; name yours with --config PATH, or create "
                f"one with a first model:\n{FIRST_MODEL}"
            )
            raise self._error(message) from error
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise self._error("the text is not UTF-8; save it as UTF-8", line) from error
        except OSError as error:
            raise self._error(f"the file cannot be read: {error.strerror}") from error

    def _require_data(self) -> None:
        if not isinstance(self._root, self._kinds):
            wrong = "is empty" if self._root is None else "does not begin with a key"
            raise self._error(f"the file {wrong}{self._expected}")

    def _require_small(self) -> None:
        """Keep a stranger's file from costing time or memory out of proportion to its size."""
        left, values = [(self._root, 1)], 0
        while left:
            node, depth = left.pop()
            values += 1
            line = node.start_mark.line + 1
            if node.anchor is not None:
                raise self._error("anchors are not accepted here; repeat the text", line)
            if values > _FOREIGN_VALUES:
                raise self._error(f"the file has more than {_FOREIGN_VALUES} values; shorten it")
            if depth > _FOREIGN_DEPTH:
                raise self._error(f"this is nested more than {_FOREIGN_DEPTH} levels deep", line)
            if isinstance(node, ScalarNode):
                number = str(node.tag).endswith((":int", ":float"))
                if number and len(node.value) > _FOREIGN_DIGITS:
                    raise self._error(f"a number has more than {_FOREIGN_DIGITS} digits", line)
            elif isinstance(node, MappingNode):
                left += [(each, depth + 1) for pair in node.value for each in pair]
            else:
                left += [(each, depth + 1) for each in node.value]

    def _repeated_keys(
        self, node: Node, path: KeyPath, above: tuple[Node, ...], seen: set[int]
    ) -> Iterator[Problem]:
        """Duplicate keys, each once, however many aliases a mapping has."""
        if any(node is other for other in above):
            line = node.start_mark.line + 1
            raise self._error(f"{key_text(path)} contains itself through an alias", line)
        if id(node) in seen:
            return
        seen.add(id(node))
        above = (*above, node)
        if isinstance(node, SequenceNode):
            for index, item in enumerate(node.value):
                yield from self._repeated_keys(item, (*path, index), above, seen)
        if isinstance(node, MappingNode):
            lines: dict[str, int] = {}
            for key, value in node.value:
                name, line = str(key.value), key.start_mark.line + 1
                at = (*path, name)
                if name in lines:
                    message = f"is already set on line {lines[name]}; delete one of the two"
                    yield Problem(self.name, key_text(at), message, line)
                lines.setdefault(name, line)
                yield from self._repeated_keys(value, at, above, seen)

    def _syntax_error(self, error: MarkedYAMLError) -> ConfigError:
        mark = error.problem_mark or error.context_mark
        lines = ["", *self._text.splitlines(), ""]
        above, line = lines[mark.line : mark.line + 2]
        words = " ".join(filter(None, (error.context, error.problem)))
        message = hint(words, line, mark.column, above)
        if error.context_mark and error.context_mark.line != mark.line:
            message += f" (it began on line {error.context_mark.line + 1})"
        return self._error(f"column {mark.column + 1}: {message}", mark.line + 1)

    def _error(self, message: str, line: int = 0) -> ConfigError:
        return ConfigError([Problem(self.name, "", message, line)])


def _child(node: Node, part: str | int) -> tuple[Node, int] | None:
    if isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part].start_mark.line + 1
    if isinstance(node, MappingNode):
        for key, value in reversed(node.value):  # what `<<` merged in comes first
            if isinstance(key, ScalarNode) and key.value == str(part):
                return value, key.start_mark.line + 1
    return None
