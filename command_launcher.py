"""The command `enginebay` of a checkout: a file on PATH that runs `start.py enginebay`.

Standard library only, as `start.py` is.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

NAME = "enginebay.cmd" if os.name == "nt" else "enginebay"
MARK = "Written by Enginebay's start.py"


def offer(start: Path, venv: Path) -> None:
    """Ask on a terminal whether to write the command, and write it if so."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or found(venv):
        return
    print(f"`enginebay` can be a command in every folder; this writes {place()}.")
    try:
        answer = input("Write it? [Y/n] ")
    except EOFError:
        return
    if answer.strip().lower() in ("", "y", "yes"):
        print(write(start, venv))
    else:
        print("Not written; `python3 start.py install enginebay` writes it later.")


def write(start: Path, venv: Path) -> str:
    """Write the command; what came of it, in words."""
    path = place()
    other = found(venv) or path
    if other.exists() and MARK not in other.read_text(encoding="utf-8", errors="replace"):
        return f"{other} is another Enginebay's, so `enginebay` was not written; remove that first."
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script(start), encoding="utf-8")
        path.chmod(0o755)
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"
    if path.parent in folders():
        return f"Wrote {path}: `enginebay` is a command now."
    return f"Wrote {path}: `enginebay` is a command once {path.parent} is in PATH."


def script(start: Path) -> str:
    """The text of the file."""
    if os.name == "nt":
        python, file = (str(each).replace("%", "%%") for each in (sys.executable, start))
        return f'@rem {MARK}\n@"{python}" "{file}" enginebay %*\n'
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(start))}"
    return f'#!/bin/sh\n# {MARK}\nexec {command} enginebay "$@"\n'


def found(venv: Path) -> Path | None:
    """The command of this name that a terminal finds now, except in the environment itself."""
    path = os.pathsep.join(str(each) for each in folders() if not each.is_relative_to(venv))
    there = shutil.which("enginebay", path=path)
    return Path(there) if there else None


def place() -> Path:
    """Where to write it: the first usual folder that is in PATH and may be written to."""
    usual = [Path.home() / ".local/bin", Path.home() / "bin"]
    usual += [Path("/opt/homebrew/bin"), Path("/usr/local/bin")]
    if os.name == "nt":
        local = os.environ.get("LOCALAPPDATA", Path.home() / "AppData/Local")
        usual = [Path(local) / "Microsoft/WindowsApps"]
    fit = [each for each in usual if each in folders()]
    fit = [each for each in fit if not each.exists() or os.access(each, os.W_OK)]
    return (fit or usual)[0] / NAME


def folders() -> list[Path]:
    """The folders in PATH."""
    return [Path(each) for each in os.environ.get("PATH", "").split(os.pathsep) if each]
