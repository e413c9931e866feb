"""Edits the keys file: comments are kept, and readers never see half a file."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from enginebay.config.keys import Role
from enginebay.config.problems import ConfigError, Problem
from enginebay.server.access.keys import hash_of

Entry = Mapping[str, Any]

HEADER = """\
# The API keys of this server. A key is shown once, when it is created; only its hash is kept here.
#   enginebay keys add NAME      creates another; also: list, rotate NAME, remove NAME
# Changes apply at once, without a restart. For a key of your own write `key: ...` instead of
# `hash`; the server replaces it by its hash. Limits that a key can have: models,
# requests_per_minute, tokens_per_minute, tokens_per_day, concurrent_requests, max_tokens, priority.
"""


def new_entry(name: str, key: str, role: Role = "user", **limits: Any) -> Entry:
    """An entry for `key`; limits that are None are left out."""
    given = {limit: value for limit, value in limits.items() if value is not None}
    return {"name": name, "role": role, "hash": hash_of(key), **given}


def create(path: Path, entries: Sequence[Entry]) -> None:
    """Write a new file that only its owner can read.

    `FileExistsError` if there is one, however short a time ago it was made. `OSError`, and no file,
    if it cannot be written.
    """
    descriptor = _open_new(path)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(HEADER + _dumped({"keys": [dict(entry) for entry in entries]}))
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def add(path: Path, entry: Entry) -> None:
    """Append an entry; the file is created if there is none."""
    try:
        create(path, [entry])
    except FileExistsError:
        with _edited(path) as keys:
            keys.append(CommentedMap(entry))


def remove(path: Path, name: str) -> None:
    """Remove the entry of this name."""
    with _edited(path) as keys:
        for index in reversed(range(len(keys))):
            if keys[index]["name"] == name:
                del keys[index]


def set_hash(path: Path, hashes: Mapping[str, str]) -> None:
    """Give the entries of these names these hashes, in place of the hash or key they have."""
    with _edited(path) as keys:
        for entry in keys:
            if (hash := hashes.get(entry["name"])) is None:
                continue
            old = "key" if "key" in entry else "hash"
            entry.insert(list(entry).index(old), "hash", hash)
            if old == "key":
                del entry["key"]
                entry.ca.items.update({"hash": entry.ca.items.pop(old, None) or []})


@contextmanager
def _edited(path: Path) -> Iterator[CommentedSeq]:
    """The entries of the file, written back when the block ends.

    The new text is written to a file beside it that nobody else can have made, which then takes
    its place: one program at a time, and whole for every reader.
    """
    path = path.resolve()  # of a link, what it leads to is replaced
    beside = path.with_name(path.name + ".lock")
    try:
        descriptor = _open_new(beside)
    except FileExistsError as error:
        message = f"another program is changing it; if none is, delete {beside}"
        raise ConfigError([Problem(str(path), "", message)]) from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            yaml = _yaml()
            data = yaml.load(path.read_text(encoding="utf-8-sig"))
            if data.get("keys") is None:
                data["keys"] = CommentedSeq()
            yield data["keys"]
            if not data["keys"]:  # comments of entries that are gone would stand before `[]`
                data["keys"] = CommentedSeq()
                data.ca.items.pop("keys", None)
            file.write(_dumped(data))
        shutil.copymode(path, beside)
        _keep_owner(path, beside)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _open_new(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)


def _keep_owner(path: Path, new: Path) -> None:
    chown: Callable[..., None] | None = getattr(os, "chown", None)
    if chown:
        owner = path.stat()
        with suppress(PermissionError):  # only root can give files away
            chown(new, owner.st_uid, owner.st_gid)


def _yaml() -> YAML:
    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.preserve_quotes = True
    yaml.width = 1000
    return yaml


def _dumped(data: Any) -> str:
    text = StringIO()
    _yaml().dump(data, text)
    return text.getvalue()
