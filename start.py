#!/usr/bin/env python3
"""Run Enginebay from a checkout: what it needs is installed into .venv on the first run.

python3 start.py                     serve the models of config.yml and those in models/
python3 start.py serve --port 9000   the same, with arguments of `enginebay serve`
python3 start.py run OWNER/REPO      run a model of a hub, with the engine that it needs
python3 start.py chat                any other command of `enginebay`
python3 start.py test [ARGUMENTS]    run the tests, with arguments of pytest
python3 start.py test --thorough     also run the tests that are left out as slow
python3 start.py check               ruff and mypy
python3 start.py python FILE [...]   run a Python file in the same environment
python3 start.py install llamacpp    install what another backend needs
"""

from __future__ import annotations

import collections
import hashlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

NEEDED = (3, 11)
ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "enginebay-installed.json"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
SUFFIX = ".exe" if os.name == "nt" else ""
PYTHON = str(BIN / f"python{SUFFIX}")


def main(arguments: list[str]) -> int:
    """Install what the command needs, then run it; its exit code."""
    command, rest = (arguments[0], arguments[1:]) if arguments else ("serve", [])
    if command in ("-h", "--help"):
        print(__doc__)
        return 0
    if command.startswith("-") and command != "--version":
        command, rest = "serve", arguments
    require_python(sys.version_info[:2])
    if command == "install":
        for extra in rest:
            install(extra)
        return (
            0 if rest else sys.exit("Name a backend to install: python3 start.py install llamacpp")
        )
    if command == "run":  # which says what it needs, once it knows
        install()
        os.environ["ENGINEBAY_START"] = str(ROOT / "start.py")
    else:
        install("test" if command in ("test", "check") else "hf")
    if command == "test":
        return run([PYTHON, "-m", "pytest", *in_parallel(rest), *rest])
    if command == "check":
        checks = (["ruff", "check"], ["ruff", "format", "--check"], ["mypy"])
        return max([run([PYTHON, "-m", *check]) for check in checks])
    if command == "python":
        return replace_by([PYTHON, *rest])
    if Path.cwd() != ROOT:
        os.environ.setdefault("ENGINEBAY_CONFIG", str(ROOT / "config.yml"))
    if command == "serve" and any(model_dir(rest).rglob("*.gguf")):
        install_if_possible("llamacpp")
    return replace_by([str(BIN / f"enginebay{SUFFIX}"), command, *rest])


def require_python(version: tuple[int, ...]) -> None:
    """Leave when this Python is too old, with the way to a newer one."""
    if version >= NEEDED:
        return
    found = next(filter(is_command, ("python3.13", "python3.12", "python3.11", "python3.14")), None)
    wanted, have = ".".join(map(str, NEEDED)), ".".join(map(str, version))
    way = f"This machine has a newer one: {found} start.py" if found else how_to_get(wanted)
    sys.exit(f"Enginebay needs Python {wanted} or newer; this is Python {have}.\n{way}")


def is_command(name: str) -> bool:
    """Whether a command of this name runs."""
    path = shutil.which(name)
    quiet = subprocess.DEVNULL
    return bool(path) and not subprocess.call([str(path), "--version"], stdout=quiet, stderr=quiet)


def how_to_get(version: str) -> str:
    """How people on this system install Python."""
    if sys.platform == "win32":
        return "Install it with: winget install Python.Python.3.13"
    if sys.platform == "darwin":
        return "Install it with: brew install python@3.13 (or from https://www.python.org)"
    return (
        f"Install it from your distribution (Debian, Ubuntu: sudo apt install python{version} "
        f"python{version}-venv) or from https://www.python.org/downloads/"
    )


def install(extra: str | None = None) -> None:
    """Make .venv and install Enginebay with this extra, unless that has been done."""
    stamp = read_stamp()
    installed = stamp or []
    if stamp is not None and (extra is None or extra in stamp or "test" in stamp):  # which has all
        return
    extras = sorted({*installed, *([extra] if extra else [])})
    failed = read_stamp("failed") or []
    STAMP.unlink(missing_ok=True)  # should the rest fail, the next run begins here again
    make_venv()
    listed = f" [{', '.join(extras)}]" if extras else ""
    print(f"Installing Enginebay{listed} into {VENV}; the first time this takes a few minutes.")
    pip_install(f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT))
    write_stamp(extras, [other for other in failed if other not in extras])
    print("Installed.")


def install_if_possible(extra: str) -> None:
    """Install it; if that fails, say so, and leave it out from then on."""
    installed, failed = read_stamp() or [], read_stamp("failed") or []
    if extra in failed:
        return
    try:
        install(extra)
    except SystemExit as error:
        write_stamp(installed, [*failed, extra])
        print(f"{error}\nGoing on without {extra}; python3 start.py install {extra} tries again.")


def model_dir(arguments: list[str]) -> Path:
    """The models folder of the server that is started with these arguments, by its config."""
    config = Path(os.environ.get("ENGINEBAY_CONFIG", "config.yml"))
    for option, value in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        if option == "--config" or option.startswith("--config="):
            config = Path(option.partition("=")[2] or value)
    try:
        text = config.read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""
    set_to = re.search(r"^\s+model_dir:\s*(\"[^\"]+\"|'[^']+'|[^#\s][^#\n]*)", text, re.MULTILINE)
    name = set_to[1].strip().strip("\"'") if set_to else "models"
    name = os.environ.get("ENGINEBAY_SERVER__MODEL_DIR") or name
    return config.absolute().parent / Path(name).expanduser()


def write_stamp(extras: list[str], failed: list[str]) -> None:
    """Remember what is installed, and what could not be."""
    stamp = {"made_of": fingerprint(), "extras": extras, "failed": failed}
    STAMP.write_text(json.dumps(stamp), encoding="utf-8")


def read_stamp(what: str = "extras") -> list[str] | None:
    """The extras that are installed, or `failed`; None when nothing is, or .venv is out of date."""
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
        current = Path(PYTHON).exists() and stamp["made_of"] == fingerprint()
        return list(stamp.get(what, [])) if current else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def fingerprint() -> str:
    """What an installation depends on: the project file, the place, the Python."""
    parts = [(ROOT / "pyproject.toml").read_text(encoding="utf-8"), str(ROOT)]
    return hashlib.sha256("\n".join([*parts, str(sys.version_info[:2])]).encode()).hexdigest()


def make_venv() -> None:
    """Make .venv, anew when it is of another Python or broken."""
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        version = ".".join(map(str, sys.version_info[:2]))
        sys.exit(
            "This Python lacks venv or ensurepip, which are needed to create an environment.\n"
            f"On Debian and Ubuntu: sudo apt install python{version}-venv"
        )
    works = f"import pip, sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    if Path(PYTHON).exists() and not subprocess.run([PYTHON, "-c", works], check=False).returncode:
        return
    print(f"Creating {VENV} with {sys.executable}")
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=False)
    if made.returncode:
        sys.exit(f"{VENV} could not be created: see above for the reason.")


def pip_install(what: str) -> None:
    """Run pip; show what it is at, and its last lines when it fails."""
    command = [PYTHON, "-m", "pip", "install", "--progress-bar=off", "--editable", what]
    last: collections.deque[str] = collections.deque(maxlen=25)
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns - 1
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as pip:
        assert pip.stdout
        for line in pip.stdout:
            last.append(line.rstrip())
            if terminal and line.strip():
                print("\r" + line.strip()[:width].ljust(width), end="", flush=True)
            elif line.startswith(("  Downloading", "Installing collected")):
                print(line.rstrip()[:200], flush=True)
    if terminal:
        print("\r" + " " * width, end="\r")
    if pip.returncode:
        print("\n".join(last))
        sys.exit("pip could not install Enginebay: see above for the reason. Then run this again.")


def in_parallel(arguments: list[str]) -> list[str]:
    """Options for as many processes as there are cores, unless tests are named or chosen."""
    if not all(argument.startswith("--") for argument in arguments):
        return []
    return ["-n", "logical", "--maxprocesses", "4", "--dist", "worksteal"]


def run(command: list[str], cwd: Path | None = ROOT) -> int:
    """Run a command, in the checkout; its exit code. Ctrl-C is the command's to handle."""
    with subprocess.Popen(command, cwd=cwd) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                pass


def replace_by(command: list[str]) -> int:
    """Become that command, where the system can; its signals and exit code are then its own."""
    sys.stdout.flush()
    if os.name != "nt":
        os.execv(command[0], command)
    return run(command, cwd=None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
