"""Where the server listens: ports and unix sockets, and the URLs at which it is found."""

import errno
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address
from pathlib import Path
from typing import Literal

import psutil

from enginebay.config.schema import Config, resolved_path

_BACKLOG = 2048
_LONGEST = 107 if sys.platform == "linux" else 103
"""Bytes of a unix socket's path; the system's structure for it has one more."""
Access = Literal["owner", "group", "all"]
_MODES: dict[Access, int] = {"owner": 0o600, "group": 0o660, "all": 0o666}


class CannotListenError(Exception):
    """The address cannot be used; the message says why and what to do."""


def listen_as_configured(config: Config) -> list[socket.socket]:
    """The socket of the server and, if the config wants one, that of its second port.

    Raises `CannotListenError`.
    """
    server, where = config.server, config.origins.where
    if path := unix_path(config):
        listening = [listen_unix(path, server.unix_socket_access)]
    else:
        listening = [listen(server.host, server.port, where(("server", "port")))]
    if server.second_port is not None:
        source = where(("server", "second_port"))
        other = "as server.second_port, or leave that out"
        try:
            listening.append(listen(server.host, server.second_port, source, other=other))
        except BaseException:
            listening[0].close()
            raise
    return listening


def listen(host: str, port: int, source: str = "", *, other: str = "with --port") -> socket.socket:
    """A listening socket. Raises `CannotListenError`.

    `source` is where the port was set, `other` how another one is chosen.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    set_in = f" (set in {source})" if source and not source.startswith("--") else ""
    try:
        socket.getaddrinfo(host, port, family)
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reasons = {
            errno.EADDRINUSE: f"port {port} is already in use{set_in}: stop the program that "
            f"listens there, or choose another port {other}",
            errno.EACCES: f"port {port} needs more privileges{set_in}: choose 1024 or higher",
            errno.EADDRNOTAVAIL: f"{host} is not an address of this machine: use 127.0.0.1 for "
            "this machine only, 0.0.0.0 for everyone who can reach it",
        }
        if isinstance(error, socket.gaierror):
            reason = f"the host {host!r} is not known: {error.strerror}"
        else:
            reason = reasons.get(error.errno or 0, f"{host} port {port}: {error.strerror}")
        raise CannotListenError(reason) from error


def unix_path(config: Config) -> Path | None:
    """The absolute path of the unix socket that a server with this config listens on."""
    path = config.server.unix_socket
    return Path(resolved_path(path, config.base)) if path else None


def path_problem(path: Path) -> str | None:
    """Why no unix socket can have this path, and what to do; None if one can."""
    size = len(os.fsencode(path))
    if size <= _LONGEST:
        return None
    return (
        f"{path} has {size} bytes, and a unix socket's path at most {_LONGEST} on this system; "
        "choose a shorter one"
    )


def listen_unix(path: Path, access: Access = "owner") -> socket.socket:
    """A listening unix socket, whose file goes when it is closed.

    The socket of a server that has died is replaced; never that of one that lives, nor any other
    file. Raises `CannotListenError`.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise CannotListenError(
            "there are no unix sockets on this system: leave out `server.unix_socket`"
        )
    if problem := path_problem(path):
        raise CannotListenError(f"`server.unix_socket`: {problem}")
    listening = _UnixSocket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _alone_in(path.parent):
            _remove_dead(path)
            listening.bind(str(path))
            listening.file = path, _identity(path)
            path.chmod(_MODES[access])  # nobody can connect yet
            listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        reason = error.strerror or error
        raise CannotListenError(
            f"cannot listen on {path}: {reason}; choose another `server.unix_socket`"
        ) from error
    except BaseException:
        listening.close()
        raise
    return listening


class _UnixSocket(socket.socket):
    """One that takes its file away with it, unless there is another one by now."""

    file: tuple[Path, tuple[int, int]] | None = None

    def close(self) -> None:
        with suppress(OSError):
            if self.file and _identity(self.file[0]) == self.file[1]:
                self.file[0].unlink()
        self.file = None
        super().close()


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Let no other server replace a socket in `folder` meanwhile."""
    import fcntl  # which Windows lacks

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _remove_dead(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise CannotListenError(
            f"{path} is a file, not a socket: choose another `server.unix_socket`, or delete it"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)  # one that lives but is busy would let this wait
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass
    raise CannotListenError(
        f"another server listens on {path}: stop it, or choose another `server.unix_socket`"
    )


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def scheme_of(config: Config) -> str:
    """How URLs of a server with this config begin."""
    return "https" if config.server.tls_cert else "http"


def url_of(host: str, port: int, scheme: str = "http") -> str:
    """The URL at which a browser on this machine finds the server."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def urls_elsewhere(host: str, port: int, scheme: str = "http") -> list[str]:
    """The URLs at which other machines of the network may find it, if it listens for them all."""
    if host not in ("0.0.0.0", "::", ""):
        return []
    found = (each for addresses in psutil.net_if_addrs().values() for each in addresses)
    addresses = [IPv4Address(each.address) for each in found if each.family == socket.AF_INET]
    return [
        url_of(str(address), port, scheme)
        for address in addresses
        if not (address.is_loopback or address.is_link_local)
    ]
