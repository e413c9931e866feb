"""The file with a cluster's token, on this machine."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from getpass import getpass
from pathlib import Path

from enginebay.cli.console import fail

VARIABLE = "ENGINEBAY_CLUSTER_TOKEN"
_BYTES = 32


def make_token(path: Path) -> bool:
    """Write a new token unless the file is there; whether it was written."""
    if path.exists():
        return False
    _write(path, secrets.token_hex(_BYTES))
    return True


def ask_for_token(path: Path) -> bool:
    """Write the token of a cluster that is to be joined; False if the file had one before.

    From the variable, which replaces another one; else, unless the file is there, from the terminal
    or a line of standard input. Exits if there is none.
    """
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        if path.exists():
            return False
        given = _asked().strip()
    if not given or not given.isascii() or not given.isprintable() or " " in given:
        fail(
            "what was given is no token; it is the line in the token file of the cluster's first "
            f"machine. Enter it when asked, pass it as standard input or in {VARIABLE}, or copy "
            f"the file to {path}",
            code=2,
        )
    if path.exists() and path.read_text(encoding="utf-8").strip() == given:
        return False
    _write(path, given)
    return True


def _asked() -> str:
    """What is typed, without showing it; off a terminal, the first line there is."""
    if not sys.stdin.isatty():
        return sys.stdin.readline()
    try:
        return getpass("Token of the cluster: ")
    except EOFError:
        return ""


def _write(path: Path, token: str) -> None:
    """As a file that only this user may read, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(token + "\n")
        Path(temporary).replace(path)
    except OSError as error:
        fail(f"the cluster's token cannot be written to {path}: {error.strerror}")
