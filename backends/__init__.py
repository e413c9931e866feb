"""The engines that come with Enginebay, registered through the same door as any plugin's.

Importing this package imports no engine library: that happens when a model is started.
"""

from importlib import import_module
from pathlib import Path

from enginebay import BackendRegister, hookimpl


@hookimpl
def register_backends(register: BackendRegister) -> None:
    """Those of every folder here that has a module `backend`."""
    for file in sorted(Path(__file__).parent.glob("*/backend.py")):
        import_module(f"backends.{file.parent.name}.backend").register_backend(register)
