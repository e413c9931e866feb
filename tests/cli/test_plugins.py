"""What `plugins list` and `config check` show of plugins and wings that work, and of others."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run

BROKEN = "raise RuntimeError('broken wing')\n"


@pytest.fixture
def with_broken_wing(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """`with_broken_wing("plugins", "list")` runs a command where Kobold's package fails."""
    package = tmp_path / "shadows" / "enginebay_kobold"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(BROKEN, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "COLUMNS": "300"}
    return lambda *command: subprocess.run(
        [sys.executable, "-P", "-m", "enginebay.cli", *command],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )


def test_wings_are_listed(run: Run) -> None:
    Path("config.yml").write_text("plugins: {blocked: [backends, kobold]}", encoding="utf-8")
    lines = [" ".join(line.split()) for line in run("plugins", "list").stdout.splitlines()]
    assert any(line.startswith("page ") and line.endswith(" ok wings page") for line in lines)
    assert any(line.endswith("built in left out blocked in the config") for line in lines)
    wings = run("config", "check").stdout.splitlines()[1]
    assert wings.startswith("wings: ")
    assert " page" in wings
    assert "kobold" not in wings


def test_a_wing_that_cannot_be_imported(
    with_broken_wing: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    (tmp_path / "config.yml").write_text(
        "plugins: {blocked: [backends]}\nkobold: {}\n", encoding="utf-8"
    )
    reason = "RuntimeError: broken wing (__init__.py, line 1)"
    listed = with_broken_wing("plugins", "list")
    [row] = [line.split() for line in listed.stdout.splitlines() if line.startswith("kobold ")]
    assert " ".join(row[2:]) == f"built in left out {reason}"
    checked = with_broken_wing("config", "check")
    assert checked.returncode == 0, checked.stderr
    assert f"warning: plugin kobold (built in): {reason}\n" in checked.stderr
    needs = "the section `kobold` needs the package enginebay_kobold, which cannot be imported"
    assert f"warning: {needs}: {reason}\n" in checked.stderr
    assert "kobold" not in checked.stdout


def test_a_plugin_that_fails_is_a_warning_of_the_check(run: Run) -> None:
    Path("config.yml").write_text("plugins: {blocked: [backends]}", encoding="utf-8")
    Path("plugins").mkdir()
    Path("plugins/bad.py").write_text("1 / 0", encoding="utf-8")
    checked = run("config", "check")
    assert checked.exit_code == 0
    assert "ZeroDivisionError: division by zero (bad.py, line 1)" in checked.stderr
