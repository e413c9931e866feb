"""The files that images and services are made of agree with each other; OPS-1.

`containers/try.py` builds an image of them and tries it, which takes minutes: `make try-image`.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from enginebay.config.schema import ServerConfig
from tests.support import REPOSITORY

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
STAGES = re.findall(r"(?m)^FROM .* AS (\S+)$", DOCKERFILE)
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
UNIT = REPOSITORY / "contrib" / "enginebay.service"
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


def yaml(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


def copied() -> list[str]:
    """What the Dockerfile copies of the repository."""
    lines = re.findall(r"(?m)^COPY (?!--from)(.*) \S+$", DOCKERFILE)
    return [source for line in lines for source in line.split()]


def sent() -> list[str]:
    """What .dockerignore lets through; it begins with everything left out."""
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    return [rule[1:] for rule in rules if rule.startswith("!")]


def test_what_is_copied_exists_and_is_sent() -> None:
    assert copied()
    for source in (*copied(), *sent()):
        assert (REPOSITORY / source).exists(), source
    for source in copied():
        parts = Path(source).parts
        assert source == "." or any("/".join(parts).startswith(each) for each in sent()), source


def test_the_image_gets_all_that_the_wheel_is_made_of() -> None:
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        wheel = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [*wheel["only-include"], PROJECT["readme"], *PROJECT["license-files"]]
    assert set(needed) <= set(sent())


def test_stages_are_known() -> None:
    assert {"cpu", "cuda"} <= set(STAGES)
    assert set(re.findall(r"(?<=--from=)[\w-]+|(?<=,from=)[\w-]+", DOCKERFILE)) <= set(STAGES)
    assert DOCKERFILE.rstrip().endswith("FROM cpu")


@pytest.mark.parametrize("extras", re.findall(r'ARG EXTRAS="(.*)"', DOCKERFILE))
def test_the_requirements_of_an_image_are_those_of_the_project(extras: str) -> None:
    printed = requirements(*extras.split()).stdout.splitlines()
    base, optional = PROJECT["dependencies"], PROJECT["optional-dependencies"]
    contained = ("standard", "page", "tls")  # in the extra of each engine
    wanted = {each for extra in (*extras.split(), *contained) for each in optional[extra]}
    assert printed[: len(base)] == base
    assert sorted(printed[len(base) :]) == sorted(
        each for each in wanted if not each.startswith("enginebay[")
    )


def test_an_unknown_extra() -> None:
    assert requirements("hf", "hff").stderr == "EXTRAS: pyproject.toml has no hff\n"


def requirements(*extras: str) -> "subprocess.CompletedProcess[str]":
    script = [sys.executable, "containers/requirements.py"]
    return subprocess.run(
        [*script, *extras], cwd=REPOSITORY, check=False, capture_output=True, text=True
    )


def test_the_config_of_an_image_differs_in_the_demo_models_path() -> None:
    """The Dockerfile replaces it by its text."""
    [(old, new)] = re.findall(r"sed 's#(.*)#(.*)#' config.yml", DOCKERFILE)
    text = (REPOSITORY / "config.yml").read_text(encoding="utf-8")
    assert text.count(old) == 1
    assert (REPOSITORY / old.removeprefix("path: ")).is_dir()
    assert new.removeprefix("path: /") in DOCKERFILE.replace("/files/", "")


def test_compose() -> None:
    compose, cuda = (yaml(REPOSITORY / name) for name in ("compose.yml", "compose.cuda.yml"))
    services = compose["services"]
    assert set(cuda["services"]) <= set(services)
    for files in (compose, cuda):
        server, key = (files["services"][name] for name in ("enginebay", "open-webui-key"))
        assert server["build"]["target"] in STAGES
        assert key["image"] == server["image"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        named = {volume.split(":")[0] for volume in service.get("volumes", ())}
        assert named - {"${MODELS"} <= set(compose["volumes"])
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")


def test_open_webui_is_the_version_that_was_tested() -> None:
    [tested] = re.findall(
        r"Open WebUI (\d[\d.]*)",
        (REPOSITORY / "docs" / "start" / "clients.md").read_text(encoding="utf-8"),
    )
    image = yaml(REPOSITORY / "compose.yml")["services"]["open-webui"]["image"]
    assert image.endswith(f":v{tested}")


def test_stopping_takes_less_than_a_manager_waits() -> None:
    needed = ServerConfig().shutdown_timeout + 5
    grace = yaml(REPOSITORY / "compose.yml")["services"]["enginebay"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > needed
    [seconds] = re.findall(r"(?m)^TimeoutStopSec=(\d+)$", UNIT.read_text(encoding="utf-8"))
    assert int(seconds) > needed


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """As it is, but with a program and a user that this machine has."""
    text = UNIT.read_text(encoding="utf-8")
    text = text.replace("/opt/enginebay/bin/enginebay", sys.executable)
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace("User=enginebay", "User=nobody"), encoding="utf-8")
    for command in (["verify"], ["security", "--offline=true", "--threshold=25"]):
        checked = subprocess.run(
            ["systemd-analyze", *command, str(unit)], check=False, capture_output=True, text=True
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "Unknown" not in checked.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_exists(path: Path) -> None:
    workflow = yaml(path)
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    for step in steps:
        assert ("run" in step) != ("uses" in step)
        for script in re.findall(r"python3? ([\w/]+\.py)", step.get("run", "")):
            assert (REPOSITORY / script).is_file()
        target = step.get("with", {}).get("target", "")
        assert not target or target == "${{ matrix.target }}"
    on = workflow.get("on") or workflow[True]  # YAML 1.1 reads `on` as true
    for pattern in (on.get("pull_request") or {}).get("paths", ()):
        assert any(
            fnmatch(str(each.relative_to(REPOSITORY)), pattern)
            for each in REPOSITORY.glob(pattern.replace("/**", "/*"))
        )
    for job in workflow["jobs"].values():
        for each in job["strategy"]["matrix"].get("include", ()) if "strategy" in job else ():
            assert each.get("target", "cpu") in STAGES
