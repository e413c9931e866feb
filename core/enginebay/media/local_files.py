"""Files of the server's own machine, in the one folder that the config names."""

import os
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from enginebay.contract.errors import InvalidRequestError

_OPEN_AS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def local_file(url: str, folder: Path | None, most: int) -> bytes:
    """The first `most` bytes of the file that a `file:` URL names, if it is inside `folder`.

    What is not gets one and the same `InvalidRequestError`, so that nobody learns which files there
    are: outside it by its real path, not there, a folder, a fifo, a device.
    """
    try:
        return _read(_path(url), folder, most)
    except (OSError, ValueError, RuntimeError) as error:  # Runtime: links that go round in circles
        raise InvalidRequestError(
            "this server reads no such file: name one in server.media_dir, by its absolute path "
            "(file:///...)"
        ) from error


def _path(url: str) -> Path:
    parts = urlsplit(url)
    named = unquote(parts.path, errors="strict")
    path = Path(named.removeprefix("/") if os.name == "nt" else named)  # /C:/pictures/a.png
    if parts.netloc not in ("", "localhost") or parts.query or not path.is_absolute():
        raise ValueError(url)
    return path


def _read(path: Path, folder: Path | None, most: int) -> bytes:
    real = path.resolve(strict=True)  # links are followed before it is compared
    if folder is None or not real.is_relative_to(folder.resolve()):
        raise ValueError(path)
    with os.fdopen(os.open(real, _OPEN_AS), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(path)
        return file.read(most)
