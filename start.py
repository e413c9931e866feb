#!/usr/bin/env python3
"""Run Enginebay from a checkout: what it needs is installed into .venv on the first run.

python3 start.py                     serve the models of config.yml and those in models/, with the
                                     engines that they need
python3 start.py serve --port 9000   the same, with arguments of `enginebay serve`
python3 start.py run OWNER/REPO      run a model of a hub, with the engine that it needs
python3 start.py chat                any other command of `enginebay`
python3 start.py test [ARGUMENTS]    run the tests, with arguments of pytest
python3 start.py test --thorough     also run the tests that are left out as slow
python3 start.py check               ruff and mypy
python3 start.py python FILE [...]   run a Python file in the same environment
python3 start.py install llamacpp    install what another backend needs
python3 start.py install enginebay   make `enginebay` a command of every folder
"""

from __future__ import annotations

import collections
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import command_launcher
import llamacpp_wheels

NEEDED = (3, 11)
ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
CONSTRAINTS = ROOT / "constraints.txt"
STAMP = VENV / "enginebay-installed.json"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
SUFFIX = ".exe" if os.name == "nt" else ""
PYTHON = str(BIN / f"python{SUFFIX}")
EXTRAS = {"test": "test", "check": "test", "conformance": "conformance"}
WITH_LLAMA_CPP = frozenset({"llamacpp", "test"})
COMPILED = re.compile(r"\s*\[(\d+)/(\d+)\] ")


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
        return install_all(rest)
    if not STAMP.exists() and command not in ("test", "check", "python"):
        command_launcher.offer(ROOT / "start.py", VENV)
    if command == "enginebay":  # so the launcher calls it; `enginebay test` is no command here
        install()
        return run_enginebay(rest)
    if command == "run":  # which says what it needs, once it knows
        install()
    else:
        install(EXTRAS.get(command, "hf"))
    if command == "test":
        return run([PYTHON, "-m", "pytest", *in_parallel(rest), *rest])
    if command == "check":
        checks = (["ruff", "check"], ["ruff", "format", "--check"], ["mypy"])
        return max([run([PYTHON, "-m", *check]) for check in checks])
    if command == "python":
        return replace_by([PYTHON, *rest])
    return run_enginebay([command, *rest])


def run_enginebay(arguments: list[str]) -> int:
    """Become the installed command; its config is the checkout's, unless this folder has one."""
    if Path.cwd() != ROOT and not Path("config.yml").exists():
        os.environ.setdefault("ENGINEBAY_CONFIG", str(ROOT / "config.yml"))
    os.environ["ENGINEBAY_START"] = str(ROOT / "start.py")  # for `run` and `serve`: see install_all
    return replace_by([str(BIN / f"enginebay{SUFFIX}"), *arguments])


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


def install_all(arguments: list[str]) -> int:
    """Install these extras, or the command `enginebay`; the exit code.

    With `--if-possible`, which `serve` says, one that cannot be installed is left out, now and the
    next times, until it is asked for without that.
    """
    if not arguments:
        sys.exit("Name a backend to install: python3 start.py install llamacpp")
    if arguments[0] == "--if-possible":
        for extra in arguments[1:]:
            install_if_possible(extra)
    else:
        for extra in arguments:
            if extra == "enginebay":
                print(command_launcher.write(ROOT / "start.py", VENV))
            else:
                install(extra)
    return 0


def install_if_possible(extra: str) -> None:
    """Install it, unless that has failed before; say if it is not there."""
    if extra not in read_stamp().failed:
        try:
            install(extra)
        except SystemExit as error:
            print(error)
        else:
            return
    print(f"Going on without {extra}; python3 start.py install {extra} tries again.")


def install(extra: str | None = None) -> None:
    """Make .venv and install Enginebay with this extra, unless that has been done."""
    stamp = read_stamp()
    wanted = {extra} if extra else set()
    build = llamacpp_wheels.wish() if wanted & WITH_LLAMA_CPP else None
    has_all = wanted <= stamp.extras or "test" in stamp.extras
    if stamp.current and has_all and build in (None, stamp.llama_cpp):
        return
    extras = stamp.extras | wanted
    STAMP.unlink(missing_ok=True)  # should this be interrupted, the next run begins here again
    make_venv()
    listed = f" [{', '.join(sorted(extras))}]" if extras else ""
    takes = "the first time this takes a few minutes"
    print(f"Installing Enginebay{listed} into {VENV}; {takes}.", flush=True)
    made = stamp.llama_cpp
    try:
        if extras & WITH_LLAMA_CPP:
            made = install_llama_cpp(build, made)
        tested = ("--constraint", str(CONSTRAINTS)) if CONSTRAINTS.exists() else ()
        pip_install(*tested, "--editable", f"{ROOT}[{','.join(sorted({'standard', *extras}))}]")
    except SystemExit:
        if stamp.current:  # the other extras still work
            failed = stamp.failed | wanted
            write_stamp(stamp._replace(extras=stamp.extras - wanted, failed=failed))
        raise
    write_stamp(Stamp(True, extras, stamp.failed - extras, made))
    print("Installed.")


def install_llama_cpp(build: str | None, made: str) -> str:
    """Install llama-cpp-python in the version that pyproject.toml pins; how it was built.

    `build`: how the environment asks for it, `made`: how the present one was built, both in the
    words of `llamacpp_wheels.wish`. A wheel is used only if it works on this machine.
    """
    asked = f"{llamacpp_wheels.PACKAGE}=={llamacpp_wheels.pinned_version()}"
    installed = llamacpp_wheels.is_installed(PYTHON)
    if build in (None, made) and installed:
        return made
    replace = llamacpp_wheels.REPLACE if installed else ()
    if build and build.startswith("compile"):
        print(llamacpp_wheels.compiling(), flush=True)
        pip_install(*llamacpp_wheels.COMPILE, *replace, asked)
        return build
    if not build and llamacpp_wheels.is_cached(PYTHON):  # compiled here before
        pip_install(asked)
        return ""
    indexes = [build] if build else llamacpp_wheels.fitting_indexes()
    while indexes:
        index = indexes.pop(0)
        print(f"Looking for a wheel of {asked} at {llamacpp_wheels.page(index)}", flush=True)
        if run_pip("install", *llamacpp_wheels.wheel_arguments(index), *replace, asked):
            print(f"No wheel fits this machine ({index}), or pip cannot reach that address.")
            continue
        problem = llamacpp_wheels.problem(PYTHON)
        libraries = llamacpp_wheels.cuda_libraries(index)
        if problem and libraries:
            run_pip("install", *libraries)
            problem = llamacpp_wheels.problem(PYTHON)
        if not problem:
            print(f"Installed the wheel ({index}).")
            return index
        print(f"The wheel ({index}) does not work on this machine: {problem}")
        run_pip("uninstall", "--yes", llamacpp_wheels.PACKAGE)
        indexes = [each for each in indexes if each == "cpu"]
    if build:
        sys.exit(f"ENGINEBAY_LLAMACPP={build}: no wheel could be installed: see above.")
    print(llamacpp_wheels.compiling(), flush=True)
    pip_install("--verbose", asked)
    return "compile"


class Stamp(NamedTuple):
    """Store the extras that are installed, those that failed, and whether .venv is up to date.

    `llama_cpp`: how llama-cpp-python was built, as `llamacpp_wheels.wish` writes it.
    """

    current: bool = False
    extras: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    llama_cpp: str = ""


def write_stamp(stamp: Stamp) -> None:
    """Remember what is installed, and what could not be."""
    values = {
        "made_of": fingerprint(),
        "extras": sorted(stamp.extras),
        "failed": sorted(stamp.failed),
        "llama_cpp": stamp.llama_cpp,
    }
    STAMP.write_text(json.dumps(values), encoding="utf-8")


def read_stamp() -> Stamp:
    """What is installed; no extras when .venv is out of date."""
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
        made = stamp.get("llama_cpp", "")
        if not Path(PYTHON).exists() or stamp["made_of"] != fingerprint():
            return Stamp(llama_cpp=made)
        return Stamp(True, frozenset(stamp["extras"]), frozenset(stamp["failed"]), made)
    except (OSError, ValueError, LookupError, TypeError):
        pass
    return Stamp()


def fingerprint() -> str:
    """What an installation depends on: the project file, the constraints, the place, the Python."""
    files = [ROOT / "pyproject.toml", *([CONSTRAINTS] if CONSTRAINTS.exists() else [])]
    parts = [*(file.read_text(encoding="utf-8") for file in files), str(ROOT)]
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


def pip_install(*arguments: str) -> None:
    """Run `pip install`; leave with its last lines when it fails."""
    last = run_pip("install", *arguments)
    if last:
        print("\n".join(last))
        sys.exit("pip could not install Enginebay: see above for the reason.")


def run_pip(command: str, *arguments: str) -> list[str]:
    """Run pip and show its progress; its last lines if it fails, else none."""
    options = ["--progress-bar=off"] if command == "install" else []
    last: collections.deque[str] = collections.deque(maxlen=25)
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns - 1
    tenths = 0
    with subprocess.Popen(
        [PYTHON, "-m", "pip", command, *options, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as pip:
        assert pip.stdout
        for line in pip.stdout:
            last.append(line.rstrip())
            shown, passing = line.strip(), True
            compiled = COMPILED.match(line)
            if compiled:
                done, files = int(compiled[1]), int(compiled[2])
                shown = f"compiled {done} of {files} files"
                passing = done * 10 // files == tenths
                tenths = done * 10 // files
            if terminal and shown:
                print("\r" + shown[:width].ljust(width), end="", flush=True)
            elif not passing or line.startswith(("  Downloading", "Installing collected")):
                print(shown[:200], flush=True)
    if terminal:
        print("\r" + " " * width, end="\r")
    return list(last) if pip.returncode else []


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
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
