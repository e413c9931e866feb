"""exllamav2's compiled extension: where torch keeps its builds, and what compiling one requires."""

import importlib.util
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time

from enginebay import ReportProgress

_NAME = "exllamav2_ext"
_SOURCES = 47
_POLL_S = 1.0
# The slowest file takes four minutes; a folder in which nothing moves for longer is left over.
_ABANDONED_AFTER_S = 15 * 60


def built_extension() -> Path | None:
    """The extension that torch compiled before for this Python and CUDA; None if there is none."""
    suffix = ".pyd" if os.name == "nt" else ".so"
    extension = build_folder() / f"{_NAME}{suffix}"
    return extension if extension.is_file() and not _lock().exists() else None


def build_folder() -> Path:
    """Where torch compiles it: below `TORCH_EXTENSIONS_DIR`, or in the user's cache."""
    from torch.utils.cpp_extension import _get_build_directory

    return Path(_get_build_directory(_NAME, False))


def missing_compiler() -> str | None:
    """What must be installed before compiling, and where to get it."""
    from torch.utils import cpp_extension

    if cpp_extension.CUDA_HOME is None:
        return (
            "the CUDA toolkit (nvcc): install the version that torch was built for and set "
            "CUDA_HOME to its folder"
        )
    if shutil.which("ninja", path=_search_path()) is None:
        return "ninja: pip install ninja"
    if os.name != "nt" and shutil.which(os.environ.get("CXX", "c++")) is None:
        return "a C++ compiler: install g++"
    return None


@contextmanager
def building(report_progress: ReportProgress) -> Iterator[None]:
    """Within, an import that compiles the extension is possible, and reports how far it is.

    Does nothing where there is an extension.
    """
    if importlib.util.find_spec(_NAME) is not None:
        yield
        return
    before = os.environ.get("PATH")
    os.environ["PATH"] = _search_path()  # torch calls ninja by name
    _remove_abandoned_lock()
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(done, report_progress), name="exllamav2-build")
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        if before is None:
            del os.environ["PATH"]
        else:
            os.environ["PATH"] = before


def _watch(done: threading.Event, report_progress: ReportProgress) -> None:
    while not done.wait(_POLL_S):
        if compiled := len(list(build_folder().glob("*.o"))):
            report_progress(f"compiling exllamav2 ({compiled} of {_SOURCES} files)", 0.0)


def _search_path() -> str:
    """The search path, with the folder of this Python's own tools after it."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)))


def _lock() -> Path:
    return build_folder() / "lock"


def _remove_abandoned_lock() -> None:
    """A build that was killed leaves a lock, for which torch would wait for ever."""
    lock = _lock()
    if not lock.exists():
        return
    newest = max(file.stat().st_mtime for file in build_folder().iterdir())
    if time() - newest > _ABANDONED_AFTER_S:
        lock.unlink(missing_ok=True)
