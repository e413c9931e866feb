"""Prints what Enginebay needs with the extras named as arguments, one requirement a line.

The images install it before Enginebay itself, as a layer that stays while pyproject.toml
and constraints.txt do.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]


def needed(extra: str) -> Iterator[str]:
    """The requirements of an extra, with the extras that it contains."""
    for requirement in PROJECT["optional-dependencies"][extra]:
        if contained := re.fullmatch(r"enginebay\[(.+)\]", requirement):
            for other in contained[1].split(","):
                yield from needed(other)
        else:
            yield requirement


if unknown := set(sys.argv[1:]) - set(PROJECT["optional-dependencies"]):
    sys.exit(f"EXTRAS: pyproject.toml has no {', '.join(sorted(unknown))}")
wanted = (requirement for extra in sys.argv[1:] for requirement in needed(extra))
print(*dict.fromkeys([*PROJECT["dependencies"], *wanted]), sep="\n")
