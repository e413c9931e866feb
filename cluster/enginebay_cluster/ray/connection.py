"""Being part of the cluster, which is a matter of the whole process."""

import logging
import os
import socket
from concurrent.futures import Future
from importlib import import_module
from threading import Thread

from enginebay_cluster.contract import ClusterError, ClusterSettings
from enginebay_cluster.ray.nodes import environment
from enginebay_cluster.ray.token import use_token

_PATIENCE = 5.0
"""Seconds in which a head must take a connection."""

_REFUSED = "InvalidAuthToken"
"""What Ray says of a token that is not that of the cluster, somewhere in its message."""

_HOW = (
    "start the cluster's head with `enginebay cluster up`, or make this machine one of its nodes "
    "with `enginebay cluster join HEAD:PORT`"
)


def prepare(settings: ClusterSettings) -> None:
    """Set what Ray reads from the environment when it is imported.

    `ClusterError` if the token cannot be used.
    """
    use_token(settings.token_file)
    os.environ.update(environment())


def connect(settings: ClusterSettings) -> None:
    """Connect this process, once; `ClusterError` if that fails. Blocks, maybe for a minute.

    Not to be called on the main thread, whose handler of SIGTERM Ray would replace.
    """
    prepare(settings)
    address = _known_here() if settings.address == "auto" else settings.address
    _require_listener(address)
    import ray

    for module in ("engines", "shared", "status"):  # which then cost nothing on the event loop
        import_module(f"enginebay_cluster.ray.{module}")
    if ray.is_initialized():
        return
    logging.getLogger("ray").setLevel(logging.ERROR)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # what it warns of is said by `links`
    try:
        ray.init(
            address=address,
            namespace="enginebay",
            log_to_driver=False,
            configure_logging=False,
        )
    except ConnectionError as error:
        if _REFUSED in str(error.__cause__):
            raise ClusterError(
                f"the cluster at {address} refused the token in {settings.token_file}; copy the "
                "token file of the cluster's first machine"
            ) from error
        raise ClusterError(
            f"this machine is no node of the cluster at {address}: {_HOW}"
        ) from error
    except (ray.exceptions.RayError, RuntimeError, ValueError) as error:
        from enginebay_cluster.ray.links import first_line

        raise ClusterError(f"the cluster at {address}: {first_line(error)}; {_HOW}") from error


def _known_here() -> str:
    """The head of the cluster that this machine was made a node of last."""
    from ray._private.utils import read_ray_address

    address: str | None = read_ray_address()
    if not address:
        raise ClusterError(f"this machine is no node of a cluster: {_HOW}")
    return address


def in_background(settings: ClusterSettings) -> Future[None]:
    """`connect`, on a thread of its own, which a program that ends does not wait for."""
    joined: Future[None] = Future()

    def work() -> None:
        try:
            connect(settings)
            joined.set_result(None)
        except BaseException as error:
            joined.set_exception(error)

    Thread(target=work, name="cluster", daemon=True).start()
    return joined


def _require_listener(address: str) -> None:
    """Ray itself would wait for a head without end."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ClusterError(
            f"`cluster.address` is {address!r}; it must be HOST:PORT of the head, or auto"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"nothing listens at {address} ({error}), where the cluster's head is to be: {_HOW}; "
            "is there a firewall between?"
        ) from error
