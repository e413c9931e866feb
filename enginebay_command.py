"""The console script `enginebay`, which first makes sure that Enginebay's packages are its own.

The wheel installs `core`, `backends` and `parsers` at the top level, where another project may have
a package of the same name. This module imports nothing of them until that is ruled out.
"""

import sys
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_PACKAGES = ("core", "backends", "parsers")
_REMEDY = (
    "Install Enginebay into an environment of its own (uv tool install, pipx, or a new venv), and "
    "keep PYTHONPATH unset there."
)


def main() -> None:
    """Run the command line; exit with a plain message where a foreign package is in its way."""
    if problem := _shadowed():
        sys.exit(f"{problem}\n{_REMEDY}")
    try:
        from core.cli import main as run
    except ImportError:
        if problem := _overwritten():
            sys.exit(f"{problem}\n{_REMEDY}")
        raise
    run()


def _shadowed() -> str | None:
    """Which package Python finds in the place of one of Enginebay's, if any."""
    for name in _PACKAGES:
        spec = find_spec(name)
        found = [
            Path(place).resolve() for place in (spec and spec.submodule_search_locations) or ()
        ]
        if found != [_HERE / name]:
            instead = found[0] if found else spec.origin if spec else "nothing"
            return (
                f"Enginebay cannot start: for its package '{name}' Python finds {instead}, "
                f"not {_HERE / name}."
            )
    return None


def _overwritten() -> str | None:
    """Which other project has installed files into one of Enginebay's packages, if any."""
    owners = packages_distributions()
    for name in _PACKAGES:
        if others := sorted(set(owners.get(name, ())) - {"enginebay"}):
            return (
                f"Enginebay cannot start: {', '.join(others)} has installed another package "
                f"'{name}' over Enginebay's in {_HERE}."
            )
    return None
