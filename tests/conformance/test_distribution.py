"""`enginebay-conformance`, where nothing of the server is installed."""

import os
import re
import tomllib
from pathlib import Path

import pytest

from tests.outsider import Outsider
from tests.support import REPOSITORY, Server
from tests.test_imports import imports

PACKAGE = REPOSITORY / "conformance"


def test_its_version_is_the_servers() -> None:
    files = (PACKAGE / "pyproject.toml", REPOSITORY / "pyproject.toml")
    own, server = (tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files)
    assert own["version"] == server["version"]


def test_only_the_command_imports_the_server() -> None:
    importing = {
        path.name
        for path in PACKAGE.rglob("*.py")
        if any(re.match(r"enginebay(\.|$)", module) for module in imports(path))
    }
    assert importing == {"wing.py", "cli.py"}


@pytest.mark.skipif(os.name == "nt", reason="links need a right on Windows")
def test_it_checks_a_server_from_its_own_environment(
    scripted_server: Server, tmp_path: Path
) -> None:
    pytest.importorskip("hatchling")
    outsider = Outsider(tmp_path / "environment", PACKAGE, ["httpx2", "openai", "pydantic"])
    spec = "import importlib.util as i; print(i.find_spec('enginebay'))"
    assert outsider.run("python", "-c", spec, cwd=tmp_path).stdout == "None\n"
    checked = outsider.run(
        "enginebay-conformance", scripted_server.url, "--group", "kobold", cwd=tmp_path
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    rows = [line.split()[0] for line in checked.stdout.splitlines()]
    assert {"row", "KOB-1"} <= set(rows)
    assert re.fullmatch(r"\d+ checks: \d+ pass, 0 fail, \d+ skip\n", checked.stderr)
    unknown = outsider.run("enginebay-conformance", "URL", "--group", "koboldd", cwd=tmp_path)
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("there is no group 'koboldd'; there are openai, ")
