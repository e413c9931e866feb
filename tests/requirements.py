"""Writes `constraints.txt`: the version of each package that the tests were run with.

python -m tests.requirements    # after the whole suite has passed with newer packages

`start.py` and the images install these versions. They are those of this environment, of everything
that the extra `test` needs.
"""

from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

FILE = Path(__file__).parents[1] / "constraints.txt"
COMMAND = "python -m tests.requirements"


def needed(requirements: Iterable[str]) -> dict[str, Distribution]:
    """Return the distributions that requirements need, and that these need, if they are installed.

    The keys are normalized names. Packages that this platform does not need are left out.
    """
    found: dict[str, Distribution] = {}
    waiting = [Requirement(requirement) for requirement in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        asked = waiting.pop()
        name = canonicalize_name(asked.name)
        if (name, frozenset(asked.extras)) in seen:
            continue
        seen.add((name, frozenset(asked.extras)))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue
        for each in map(Requirement, found[name].requires or ()):
            extras = ("", *asked.extras)
            if not each.marker or any(each.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(each)
    return found


def installed_versions() -> dict[str, str]:
    """Return the versions of everything that the extra `test` needs, without build labels."""
    packages = needed(["enginebay[test]"])
    packages.pop("enginebay")
    return {name: Version(packages[name].version).public for name in sorted(packages)}


def written() -> str:
    """Return what the file should contain."""
    lines = [
        "# The versions that the tests were run with. start.py and the images install them.",
        f"# Written by: {COMMAND}",
        *(f"{name}=={version}" for name, version in installed_versions().items()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
