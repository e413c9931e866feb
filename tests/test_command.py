"""The console script of the installed package, beside packages that have our old names."""

import subprocess
from pathlib import Path

from tests.outsider import Outsider


def test_foreign_packages_do_no_harm(outsider: Outsider, tmp_path: Path) -> None:
    """Packages named like our folders, found before ours, do not matter."""
    for name in ("core", "backends", "parsers", "cluster", "templates", "tests"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('never imported')", "utf-8")
    help: subprocess.CompletedProcess[str] = outsider.run("enginebay", "--help", cwd=tmp_path)
    assert (help.returncode, help.stderr) == (0, "")
    assert "OpenAI-compatible server" in help.stdout
    listed = outsider.run("python", "-m", "enginebay.cli", "plugins", "list", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "never imported" not in listed.stdout + listed.stderr
