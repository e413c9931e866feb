"""Libraries of backends that are not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, metadata
from typing import TYPE_CHECKING

from enginebay.cli.console import fail
from enginebay.cli.libraries import tried

if TYPE_CHECKING:
    from enginebay.config.schema import Config
    from enginebay.plugins import Plugins

INSTALLER = "ENGINEBAY_START"
"""The variable in which `start.py` says where it is: it installs what a command then needs."""


def install_libraries(config: Config, plugins: Plugins) -> None:
    """Have what the models of a config import, and those of its models folder, as far as possible.

    Only if `start.py` runs this command; it says what it cannot install.
    """
    if INSTALLER not in os.environ:
        return
    extras = _extras()
    of_wings = (each for wing in plugins.wings.values() for each in wing.extras(config, plugins))
    wanted = [*_backends(config, plugins), *of_wings]
    needed = dict.fromkeys(name for name in wanted if name in extras)
    if needed:
        _install("--if-possible", *needed)


def require_libraries(backend: str, plugins: Plugins) -> None:
    """Have what a backend imports, if `start.py` runs this command; else exit with what to do."""
    entry = plugins.backends.get(backend)
    if entry is None:
        return
    has_extra = backend in _extras()
    failed = has_extra and not _install(backend)
    if not (missing := entry.missing()):
        return
    if failed:
        fail(f"the backend {backend} could not be installed: see above for the reason")
    fail(_lacks(backend, missing))


def lacking_libraries(backends: Iterable[str], plugins: Plugins) -> list[str]:
    """The libraries that these backends lack or that do not import, with what installs them."""
    entries = {name: entry for name in backends if (entry := plugins.backends.get(name))}
    imported = tried(
        library for entry in entries.values() if not entry.missing() for library in entry.requires
    )
    lacking: list[str] = []
    for backend, entry in entries.items():
        if missing := entry.missing():
            lacking.append(_lacks(backend, missing))
        elif broken := [each for name in entry.requires if (each := imported[name]).problem]:
            words = ", ".join(map(str, broken))
            lacking.append(f"the backend {backend} cannot run: {words}; {_remedy(backend)}")
    return lacking


def _lacks(backend: str, missing: list[str]) -> str:
    names = ", ".join(missing)
    return f"the backend {backend} needs {names}, which is not installed; {_remedy(backend)}"


def _remedy(backend: str) -> str:
    """How to install what a backend imports."""
    if backend in _extras():
        return (
            f"install it with: python3 start.py install {backend}, or without a checkout: "
            f"pip install 'enginebay[{backend}]'"
        )
    return "install what its documentation says"


def _backends(config: Config, plugins: Plugins) -> Iterator[str]:
    """Those of all models of the config, then of those in the models folder."""
    from enginebay.config.engines import engine_config
    from enginebay.models.files.model_folder import folder_of

    yield from (engine_config(model, plugins.backends).backend for model in config.models)
    yield from (model.backend for model in folder_of(config, plugins).models().values())


def _install(*arguments: str) -> bool:
    """Run `start.py install`, if that runs this command; False if it could not.

    It is asked even if nothing is missing, since it knows what is older than this version needs.
    """
    installer = os.environ.get(INSTALLER)
    command = [sys.executable, str(installer), "install", *arguments]
    return not installer or subprocess.run(command, check=False).returncode == 0


def _extras() -> list[str]:
    """The extras of this package: there is one for each backend of its own."""
    try:
        return metadata("enginebay").get_all("Provides-Extra") or []
    except PackageNotFoundError:
        return []
