"""Prints what Enginebay needs with the extras named as arguments, one requirement a line.

The images install it before Enginebay itself, as a layer that stays while pyproject.toml does.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
if unknown := set(sys.argv[1:]) - set(extras):
    sys.exit(f"EXTRAS: pyproject.toml has no {', '.join(sorted(unknown))}")
wanted = (requirement for extra in sys.argv[1:] for requirement in extras[extra])
print(*project["dependencies"], *wanted, sep="\n")
