"""Files: names that clients send for those in a folder of the config, what they are, changes."""

import re
from pathlib import Path

from enginebay.contract.errors import InvalidRequestError

_LONGEST, _LONGEST_PART = 1000, 255  # bytes; of a part on most file systems
_OF_WINDOWS = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?|.*[. ]", re.IGNORECASE)
"""Names that Windows takes for devices, and those of which it drops the end."""


def inside(folder: Path, name: str, param: str) -> Path:
    """The absolute path of `name` in `folder`, whether it exists or not.

    `InvalidRequestError` for paths outside the folder once symbolic links are resolved, and for
    names that are not portable; `param` is the request field with the name.
    """
    parts = name.split("/")
    if (
        not name
        or not name.isprintable()
        or len(name.encode()) > _LONGEST
        or any(character in name for character in '\\:*?"<>|')
        or any(part in ("", ".", "..") or len(part.encode()) > _LONGEST_PART for part in parts)
        or any(_OF_WINDOWS.fullmatch(part) for part in parts)
    ):
        raise InvalidRequestError(
            f"{name[:100]!r} is not a valid name of a file or folder", param=param
        )
    try:
        base = folder.resolve()
        path = base.joinpath(*parts).resolve()
    except (OSError, RuntimeError) as error:  # links that go round in circles
        raise InvalidRequestError(f"{name!r} cannot be resolved: {error}", param=param) from error
    if base not in path.parents:
        raise InvalidRequestError(f"{name!r} is outside its folder", param=param)
    return path


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a file or folder lies in `folder` after all symbolic links are resolved."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # links that go round in circles
        return False


def leads_outside(file: Path, folder: Path) -> bool:
    """Whether a file of a model's folder is in fact a file outside, through links or `..`.

    A download in the cache of Hugging Face is one folder: its `models--*/snapshots/REVISION` links
    to its `models--*/blobs`.
    """
    if is_inside(file, folder):
        return False
    here = folder.resolve()
    repositories = (each.parents[1] for each in (here, *here.parents) if len(each.parents) > 1)
    return not any(
        repository.name.startswith("models--")
        and here.is_relative_to(repository / "snapshots")
        and is_inside(file, repository / "blobs")
        for repository in repositories
    )


def is_special(path: Path) -> bool:
    """Whether it is a pipe, a device or a socket, which may be read for ever."""
    return path.exists() and not (path.is_file() or path.is_dir())


def state_of(path: Path) -> tuple[int, int, int] | None:
    """What differs after every change of a file, or of what a link leads to; None without one."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
