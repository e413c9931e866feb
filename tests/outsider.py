"""Enginebay and the packages under `examples/`, installed as strangers get them.

pip builds wheels and installs them into an environment of their own. Libraries that they depend on
are those of the environment that runs the tests, so nothing is downloaded; that their metadata asks
for what is there, pip checks. What is imported there is never the checkout.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import REPOSITORY

ROOTS = ("core", "backends", "parsers", "apis", "cluster")
"""The folders of the checkout that hold packages."""
EXAMPLES = sorted(file.parent for file in (REPOSITORY / "examples").glob("*/pyproject.toml"))
_MISSING = re.compile(r"No matching distribution found for (?!enginebay)(.+)")


def entry_points(package: Path) -> dict[str, str]:
    """The plugins that a package declares: names and modules."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return dict(project["entry-points"]["enginebay"])


class Outsider:
    """An environment in `folder` with Enginebay in it."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=os.name != "nt")
        places = {"base": str(folder), "platbase": str(folder)}
        self.packages = Path(sysconfig.get_path("purelib", "venv", places))
        self._scripts = Path(sysconfig.get_path("scripts", "venv", places))
        libraries = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        # As lines of a .pth file, where those of the libraries' own .pth files have no effect: the
        # checkout, which is installed editable, stays out.
        (self.packages / "libraries.pth").write_text("\n".join(libraries), encoding="utf-8")
        self._installed: set[Path] = set()
        self._pip_install(str(REPOSITORY))

    def install(self, package: Path) -> None:
        """Install a package with what its tests need; skip when a library is not there."""
        if package not in self._installed:
            self._pip_install(f"{package}[test]")
            self._installed.add(package)

    def run(self, *command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
        """Run a command of this environment, `python` say."""
        return subprocess.run(
            self._command(*command), cwd=cwd, env=_ENVIRONMENT, capture_output=True, text=True
        )

    @contextmanager
    def serve(self, folder: Path, config: str) -> Iterator[str]:
        """The URL of `enginebay serve` with this config, until the block ends."""
        (folder / "config.yml").write_text(config, encoding="utf-8")
        errors = folder / "stderr"
        with (
            errors.open("w", encoding="utf-8") as stderr,
            subprocess.Popen(
                self._command("enginebay", "serve", "--port", "0"),
                cwd=folder,
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            ) as process,
        ):
            try:
                assert process.stdout
                lines = []
                for line in process.stdout:
                    lines.append(line)
                    if line.startswith("Model"):
                        break
                found = re.search(r"http://127\.0\.0\.1:\d+", "".join(lines))
                assert found, errors.read_text(encoding="utf-8")
                yield found[0]
            finally:
                process.terminate()

    def _command(self, name: str, *arguments: str) -> list[str]:
        suffix = ".exe" if os.name == "nt" else ""
        return [str(self._scripts / f"{name}{suffix}"), *arguments]

    def _pip_install(self, what: str) -> None:
        python = self._command("python")[0]
        offline = ("--no-index", "--no-build-isolation", "--disable-pip-version-check", "--quiet")
        command = [sys.executable, "-m", "pip", "--python", python, "install", *offline, what]
        pip = subprocess.run(command, env=_ENVIRONMENT, capture_output=True, text=True)
        if missing := _MISSING.search(pip.stderr):
            pytest.skip(f"{missing[1]} is not installed here")
        assert pip.returncode == 0, pip.stdout + pip.stderr


_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
    "COLUMNS": "300",
    "PYTHONUTF8": "1",
}
