"""The Python environment that runs this program, and how packages are installed into it."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from enginebay.cli.console import fail, stderr

OURS = "enginebay"
_REASONS = (
    (r"depends on enginebay(?![\w-])",
     "needs another version of Enginebay, and this is {enginebay}"),
    (r"requires a different Python|require a different python|Requires-Python"
     r"|the current Python version", "needs another version of Python, and this is {python}"),
    (r"NewConnectionError|Temporary failure in name resolution|Network is unreachable|dns error"
     r"|error sending request|ConnectTimeoutError|Connection refused",
     "needs a download, and the address cannot be reached"),
    (r"No matching distribution found|was not found in the",
     "does not exist where packages are looked for, or not for this machine"),
    (r"ResolutionImpossible|conflicting dependencies|No solution found",
     "needs other versions of libraries than this Enginebay runs with, which are not changed"),
    (r"No space left", "needs more disk space than there is"),
)  # fmt: skip
"""What pip and uv say when they cannot install a package, and what that means."""


class Installer(NamedTuple):
    """The program that installs packages into this environment: pip or uv."""

    name: str
    install: tuple[str, ...]
    uninstall: tuple[str, ...]

    def run(self, *command: str) -> list[str] | None:
        """Run it with its output on stderr. None if it succeeds, else what it wrote."""
        lines: list[str] = []
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        ) as process:
            assert process.stdout
            for line in process.stdout:
                lines.append(line.rstrip())
                stderr().print(f"  {lines[-1]}", style="dim")
        return lines if process.returncode else None


def find_installer() -> Installer:
    """Return pip or uv, or exit with the reason why nothing can be installed here."""
    marker = Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    if sys.prefix == sys.base_prefix and marker.exists():
        fail(
            f"the Python in {sys.prefix} belongs to the operating system, which allows no other "
            "packages in it (PEP 668). Install Enginebay into a virtual environment, with "
            "`python3 -m venv`, pipx or uv, and add the plugin there."
        )
    packages = sysconfig.get_path("purelib")
    if not os.access(packages, os.W_OK):
        fail(
            f"{packages} cannot be written by this user. Run the command as the user who installed "
            "Enginebay, or put a plugin that is a single file into the plugins folder."
        )
    if find_spec("pip") is not None:
        pip = (sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input")
        return Installer("pip", (*pip, "install", "--upgrade"), (*pip, "uninstall", "--yes"))
    if uv := shutil.which("uv"):
        here = ("--python", sys.executable)
        return Installer(
            "uv", (uv, "pip", "install", "--upgrade", *here), (uv, "pip", "uninstall", *here)
        )
    fail(
        f"there is neither pip in {sys.prefix} nor uv, so nothing can be installed. Run "
        f"`{sys.executable} -m ensurepip`, or install uv: https://docs.astral.sh/uv/"
    )


def installed() -> dict[str, Distribution]:
    """Return all distributions of this environment, by their normalized names."""
    importlib.invalidate_caches()
    found: dict[str, Distribution] = {}
    for each in distributions():
        for name in each.metadata.get_all("Name") or ():
            found.setdefault(canonicalize_name(name), each)
    return found


def own_requirements() -> dict[str, str]:
    """Return the versions of Enginebay and of all that it uses, as they are installed, by name."""
    versions: dict[str, str] = {}
    done: set[tuple[str, str]] = set()
    try:
        extras = distribution(OURS).metadata.get_all("Provides-Extra") or []
    except PackageNotFoundError:
        return {}
    todo = [(OURS, extra) for extra in ("", *extras)]
    while todo:
        name, extra = asked = todo.pop()
        if asked in done:
            continue
        done.add(asked)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # of an extra that is not installed
        versions[canonicalize_name(name)] = found.version
        for text in found.requires or ():
            needs = Requirement(text)
            if needs.marker is None or needs.marker.evaluate({"extra": extra}):
                todo += ((needs.name, extra) for extra in ("", *needs.extras))
    return versions


def install(installer: Installer, what: Sequence[str], shown: str) -> None:
    """Install a package without a change of what Enginebay uses, or exit with the reason."""
    fixed = own_requirements()
    with tempfile.TemporaryDirectory(prefix="enginebay-") as folder:
        constraints = Path(folder, "what-enginebay-uses.txt")
        lines = (f"{name}=={version}\n" for name, version in sorted(fixed.items()))
        constraints.write_text("".join(lines), encoding="utf-8")
        failed = installer.run(*installer.install, "--constraint", str(constraints), *what)
    if failed is not None:
        fail(f"{shown} {_reason(failed, installer.name, fixed)}. Nothing was installed.")


def uninstall(installer: Installer, names: Iterable[str]) -> None:
    """Uninstall these distributions, or exit with the names that are still there."""
    names = list(names)
    installer.run(*installer.uninstall, *names)
    left = installed()
    if kept := [name for name in names if canonicalize_name(name) in left]:
        where = left[canonicalize_name(kept[0])].locate_file("")
        fail(
            f"{', '.join(kept)} could not be uninstalled from {where}: {installer.name} says why. "
            "A package outside this environment is removed where it was installed."
        )


def comes_from(found: Distribution) -> str:
    """Return the URL that a distribution was installed from; empty if it came from an index."""
    try:
        return str(json.loads(found.read_text("direct_url.json") or "{}").get("url", ""))
    except (ValueError, AttributeError):
        return ""


def kept_by(names: Iterable[str]) -> str | None:
    """Return what keeps added packages when the tool that made this environment upgrades it."""
    prefix, names = Path(sys.prefix), list(names)
    if (prefix / "uv-receipt.toml").exists():
        more = " ".join(f"--with {name}" for name in names)
        return f"`uv tool upgrade` may remove it; `uv tool install {OURS} {more}` keeps it"
    if (prefix / "pipx_metadata.json").exists():
        return f"`pipx reinstall` removes it; `pipx inject {OURS} {' '.join(names)}` keeps it"
    return None


def _reason(lines: Sequence[str], program: str, fixed: dict[str, str]) -> str:
    """Return what prevents an installation, as the rest of a sentence about the package."""
    said = "\n".join(lines)
    for pattern, meaning in _REASONS:
        if re.search(pattern, said, re.IGNORECASE):
            python = ".".join(map(str, sys.version_info[:3]))
            meaning = meaning.format(enginebay=fixed.get(OURS, "unknown"), python=python)
            return f"{meaning} (see the messages of {program})"
    return f"could not be installed (see the messages of {program})"
