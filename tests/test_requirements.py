"""The versions in `constraints.txt` and in `pyproject.toml` are those of the tests."""

import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.requirements import COMMAND, FILE, installed_versions
from tests.support import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIREMENTS = [
    requirement
    for extra in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for requirement in map(Requirement, extra)
    if requirement.name != "enginebay"
]


def test_the_constraints_are_what_is_installed() -> None:
    """Packages of other platforms are in the file, too, so only those of this one are compared."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    constrained = dict(line.split("==") for line in lines if not line.startswith("#"))
    newer = {
        f"{name}=={version}"
        for name, version in installed_versions().items()
        if constrained.get(name, version) != version
    }
    assert newer == set(), f"after the whole suite has passed, run: {COMMAND}"


def test_every_requirement_is_constrained() -> None:
    text = FILE.read_text(encoding="utf-8")
    names = {canonicalize_name(requirement.name) for requirement in REQUIREMENTS}
    assert {name for name in names if f"\n{name}==" not in text} == set()


def test_bounds_move_with_the_tested_versions() -> None:
    """An upper bound excludes the release after the tested one, and admits the tested one."""
    versions = installed_versions()
    outdated = []
    for requirement in REQUIREMENTS:
        version = Version(versions[canonicalize_name(requirement.name)])
        for bound in requirement.specifier:
            if bound.operator == "<":
                *same, last = Version(bound.version).release
                if version.release[: len(same) + 1] != (*same, last - 1):
                    outdated.append(f"{requirement}: the tests ran with {version}")
    assert outdated == []
