"""Finds the GGUF file or files of a model's path."""

import re
from pathlib import Path

from enginebay import BackendUnavailableError

_MAGIC = b"GGUF"
_FORMAT = re.compile(r"model|b?f\d+|i?q\d\w*|[01klms]|xl|xs")
_PART = re.compile(
    r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<ending>\.gguf)", re.IGNORECASE
)


def unavailable(path: Path, message: str) -> BackendUnavailableError:
    """The error that a model cannot be loaded, and what to do about it."""
    return BackendUnavailableError(f"{path}: {message}")


def find_gguf(path: Path) -> Path:
    """The file to load: the first part where a model is split into several.

    A folder may stand for the only model in it, beside which there may be mmproj files. A
    `BackendUnavailableError` says what is wrong with files that are missing or not GGUF; llama.cpp
    finds out whether their content is complete.
    """
    if path.is_dir():
        path = _only_model(path)
    if not path.exists():
        raise unavailable(path, "there is no such file; `path` must name a GGUF file")
    parts = parts_of(path)
    if missing := [part.name for part in parts if not part.exists()]:
        raise unavailable(
            path,
            f"the model is split into {len(parts)} files and {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing; download all of them into one folder",
        )
    for part in parts:
        _check_magic(part)
    return parts[0]


def find_mmproj(model: Path) -> Path | None:
    """The file beside a model that makes it see or hear, None if there is none.

    Among several models it belongs to those that have all words of its name, but for formats, in
    theirs. A `BackendUnavailableError` if there are several.
    """
    found = sorted(file for file in gguf_files(model.parent) if is_mmproj(file))
    if len(_models(model.parent)) > 1:
        found = [file for file in found if _words(file) <= _words(model)]
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise unavailable(
            model,
            f"there are several mmproj files beside it; name one as `mmproj`, or set "
            f"`mmproj: false` for text only: {names}",
        )
    return found[0] if found else None


def gguf_files(folder: Path) -> list[Path]:
    """The files in a folder whose names end so, also in capitals."""
    return list(folder.glob("*.[gG][gG][uU][fF]"))


def is_mmproj(file: Path) -> bool:
    """Whether it is named as the file is that makes a model see or hear."""
    return "mmproj" in file.name.lower()


def is_later_part(file: Path) -> bool:
    """Whether it is a file of a split model, and not the first."""
    match = _PART.fullmatch(file.name)
    return match is not None and int(match["number"]) > 1


def size(path: Path) -> int:
    """Bytes of the file and of all other parts of its model."""
    return sum(part.stat().st_size for part in parts_of(path))


def _words(file: Path) -> set[str]:
    words = re.findall(r"[a-z0-9]+", file.stem.lower())
    return {word for word in words if word != "mmproj" and not _FORMAT.fullmatch(word)}


def _models(folder: Path) -> list[Path]:
    return sorted({parts_of(file)[0] for file in gguf_files(folder) if not is_mmproj(file)})


def _only_model(folder: Path) -> Path:
    models = _models(folder)
    if not models:
        raise unavailable(
            folder,
            "there is no GGUF file in this folder; name a .gguf file, or use `backend: hf` "
            "for a model with safetensors",
        )
    if len(models) > 1:
        names = ", ".join(model.name for model in models)
        raise unavailable(folder, f"there are several models in this folder, name one: {names}")
    return models[0]


def parts_of(path: Path) -> list[Path]:
    """The file, or all parts of the model that it is one of."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    stem, count = match["stem"], int(match["count"])
    end = f"-of-{count:05}{match['ending']}"
    return [path.with_name(f"{stem}-{i:05}{end}") for i in range(1, count + 1)]


def _check_magic(path: Path) -> None:
    if not path.is_file():  # opening a pipe would wait for ever
        raise unavailable(path, "this is not a regular file; `path` must name a GGUF file")
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except OSError as error:
        raise unavailable(path, f"the file cannot be read: {error.strerror}") from error
    if start != _MAGIC:
        raise unavailable(
            path, "this is not a GGUF file; download it again, or convert the model to GGUF"
        )
