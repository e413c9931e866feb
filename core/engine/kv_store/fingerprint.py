"""What tells the files of a model, or of an adapter, from others."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

_SAMPLES = 256
_SAMPLE = 4096


def fingerprint(files: Iterable[Path]) -> str:
    """Of their names, sizes, times of change and samples of their content: files may be large.

    So the same file with another time counts as another one. Blocks briefly; `OSError`.
    """
    digest = hashlib.sha256()
    for path in sorted(files):
        about = path.stat()
        digest.update(f"{path.name}\0{about.st_size}\0{about.st_mtime_ns}\0".encode())
        with path.open("rb") as file:
            step = max(_SAMPLE, about.st_size // _SAMPLES)
            for at in range(0, about.st_size, step):
                file.seek(at)
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()
