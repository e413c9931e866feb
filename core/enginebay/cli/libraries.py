"""Whether libraries can be imported, tried in separate processes.

Only an import shows it, since a library may itself lack libraries. An import may also print, hang
or end its process, and takes memory that is never freed.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

TIMEOUT = 120
"""Seconds for one library; some compile something when they are imported first."""

_AT_ONCE = 2
_CODE = """
import importlib, sys
module = importlib.import_module(sys.argv[1])
print()
print(getattr(module, "__version__", ""))
"""


class Library(NamedTuple):
    """A library with its version, or the reason why it does not import."""

    name: str
    version: str = ""
    problem: str = ""

    def __str__(self) -> str:
        if self.problem:
            return f"{self.name} does not import ({self.problem})"
        return f"{self.name} {self.version}".rstrip()


def tried(names: Iterable[str]) -> dict[str, Library]:
    """Each library, after an attempt to import it."""
    names = list(dict.fromkeys(names))
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return dict(zip(names, threads.map(_try, names), strict=True))


def _try(name: str) -> Library:
    path = os.pathsep.join(os.path.abspath(each) for each in sys.path)  # noqa: PTH100  (of text)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _CODE, name],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return Library(name, problem=f"not within {TIMEOUT} seconds")
    said = done.stdout.splitlines()
    if done.returncode == 0 and said:
        return Library(name, said[-1])
    reason = f"its process ended with exit code {done.returncode}"
    if done.returncode == 1 and done.stderr.strip():  # an exception, the last line of its traceback
        reason = done.stderr.strip().splitlines()[-1]
    return Library(name, problem=reason)
