"""Libraries of backends that are not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, metadata
from typing import TYPE_CHECKING

from core.cli.console import fail, stderr

if TYPE_CHECKING:
    from core.plugins import Plugins

INSTALLER = "ENGINEBAY_START"
"""The variable in which `start.py` says where it is: it installs what a command then needs."""


def require_libraries(backend: str, plugins: Plugins) -> None:
    """Have what a backend imports, if `start.py` runs this command; else exit with what to do."""
    entry = plugins.backends.get(backend)
    if entry is None or not (missing := entry.missing()):
        return
    has_extra = backend in _extras()
    installer = os.environ.get(INSTALLER)
    if has_extra and installer:
        stderr().print(f"the backend {backend} is not installed yet")
        if subprocess.run([sys.executable, installer, "install", backend]).returncode:
            fail(f"the backend {backend} could not be installed: see above for the reason")
        if not (missing := entry.missing()):
            return
    remedy = "install what its documentation says"
    if has_extra:
        remedy = (
            f"install it with: python3 start.py install {backend}, or without a checkout: "
            f"pip install 'enginebay[{backend}]'"
        )
    fail(f"the backend {backend} needs {', '.join(missing)}, which is not installed; {remedy}")


def _extras() -> list[str]:
    """The extras of this package: there is one for each backend of its own."""
    try:
        return metadata("enginebay").get_all("Provides-Extra") or []
    except PackageNotFoundError:
        return []
