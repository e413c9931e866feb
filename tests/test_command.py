"""The console script says which package is in the way of Enginebay's, in place of a traceback."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY

RUN = "import enginebay_command; enginebay_command.main()"


def enginebay(*paths: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-c", RUN, "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
    )


def test_it_runs_the_command_line() -> None:
    result = enginebay(REPOSITORY)
    assert (result.returncode, result.stderr) == (0, "")
    assert "OpenAI-compatible server" in result.stdout


@pytest.mark.parametrize("file", ["core/__init__.py", "core.py", "backends/a.py", "parsers.py"])
def test_a_foreign_package_in_front_of_ours(file: str, tmp_path: Path) -> None:
    foreign = tmp_path / file
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_text("raise SystemExit('never imported')", encoding="utf-8")
    (foreign.parent / "__init__.py").touch()
    name = file.partition("/")[0].removesuffix(".py")
    result = enginebay(tmp_path, REPOSITORY)
    assert result.returncode == 1
    found = foreign if foreign.parent == tmp_path else foreign.parent
    assert f"its package '{name}' Python finds {found}, not {REPOSITORY / name}" in result.stderr
    assert "an environment of its own" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_foreign_package_installed_over_ours(tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / "enginebay_command.py", tmp_path)
    for name in ("core", "backends", "parsers"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    broken = enginebay(tmp_path)
    assert "No module named 'core.cli'" in broken.stderr  # nobody to blame: the error as it is
    metadata = tmp_path / "somebody_else-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody-else\nVersion: 1\n")
    (metadata / "top_level.txt").write_text("core\n")
    result = enginebay(tmp_path)
    assert result.returncode == 1
    assert "somebody-else has installed another package 'core' over Enginebay's" in result.stderr
    assert "Traceback" not in result.stderr
