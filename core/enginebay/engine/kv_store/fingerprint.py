"""What tells the files of a model, or of an adapter, from others."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from enginebay.contract.types import Lora

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


def lora_fingerprint(loras: Sequence[Lora]) -> str:
    """Of an adapter: of all files of its LoRAs, and how strong they are."""
    digest = hashlib.sha256()
    for lora in loras:
        path = Path(lora.path)
        files = [file for file in path.iterdir() if file.is_file()] if path.is_dir() else [path]
        digest.update(f"{fingerprint(files)} {lora.scaling}\0".encode())
    return digest.hexdigest()
