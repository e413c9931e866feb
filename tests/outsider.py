"""Enginebay, its conformance checks and the packages under `examples/`, as strangers get them.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.requirements import needed
from tests.support import REPOSITORY

ROOTS = ("core", "backends", "parsers", "apis", "cluster", "page")
"""The folders of the checkout that hold packages of the wheel."""
EXAMPLES = sorted(file.parent for file in (REPOSITORY / "examples").glob("*/pyproject.toml"))
_MISSING = re.compile(r"No matching distribution found for (?!enginebay)(.+)")


def entry_points(package: Path) -> dict[str, str]:
    """The plugins that a package declares: names and modules."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return dict(project["entry-points"]["enginebay"])


class Outsider:
    """An environment in `folder` with Enginebay, or another package of the checkout, in it.

    Its libraries are those of the environment that runs the tests. `needs` limits them to the
    libraries that these requirements need.
    """

    def __init__(self, folder: Path, package: Path = REPOSITORY, needs: Sequence[str] = ()) -> None:
        venv.create(folder, symlinks=os.name != "nt")
        self.prefix = folder
        places = {"base": str(folder), "platbase": str(folder)}
        self.packages = Path(sysconfig.get_path("purelib", "venv", places))
        self._scripts = Path(sysconfig.get_path("scripts", "venv", places))
        self._wheels = folder / "wheels"
        if needs:
            self._link(needs)
        else:
            paths = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
            # As lines of a .pth file, where those of the libraries' own .pth files have no effect:
            # the checkout, which is installed editable, stays out.
            (self.packages / "libraries.pth").write_text("\n".join(paths), encoding="utf-8")
        self._installed: set[Path] = set()
        self.install(package, extra="")

    def install(self, package: Path, *, extra: str = "[test]") -> None:
        """Install a package with what its tests need; skip when a library is not there."""
        if package in self._installed:
            return
        folder = self._wheels / package.name
        build = ("--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(package))
        self._pip("wheel", *build)
        [wheel] = folder.iterdir()
        python = self._command("python")[0]
        self._pip("--python", python, "install", "--no-index", f"{wheel}{extra}")
        self._installed.add(package)

    def run(self, *command: str, cwd: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of this environment, `python` say, with these variables."""
        environment = _ENVIRONMENT | variables
        return subprocess.run(
            self._command(*command), cwd=cwd, env=environment, capture_output=True, text=True
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

    def _link(self, requirements: Sequence[str]) -> None:
        """Link the libraries that these requirements need, as if pip had installed them."""
        libraries = needed(requirements)
        libraries.pop("enginebay", None)
        for library in libraries.values():
            for top in {file.parts[0] for file in library.files or ()} - {"..", "__pycache__"}:
                (self.packages / top).symlink_to(str(library.locate_file(top)))

    def _command(self, name: str, *arguments: str) -> list[str]:
        suffix = ".exe" if os.name == "nt" else ""
        return [str(self._scripts / f"{name}{suffix}"), *arguments]

    def _pip(self, *arguments: str) -> None:
        quiet = ("--disable-pip-version-check", "--quiet")
        command = [sys.executable, "-m", "pip", *arguments, *quiet]
        pip = subprocess.run(command, env=_ENVIRONMENT, capture_output=True, text=True)
        if missing := _MISSING.search(pip.stderr):
            pytest.skip(f"{missing[1]} is not installed here")
        assert pip.returncode == 0, pip.stdout + pip.stderr


_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
    "COLUMNS": "300",
    "PYTHONUTF8": "1",
}
