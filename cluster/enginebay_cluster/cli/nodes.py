"""Runs programs that are nodes of a cluster, until they end or are told to."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from enginebay_cluster.contract import NodeCommand

GRACE = 5.0
"""Seconds in which several nodes of one machine must have ended before they are killed."""

_KEPT = 8192  # bytes of what a node writes
_LAST_WORDS = 12
_LOOKING_AGAIN = 0.2
_PR_SET_PDEATHSIG = 1  # of Linux: the signal that a process gets when its parent dies


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A node to be started: how, once those before it are there, and where it will listen then.

    `patience`: seconds it may take until then.
    """

    command: Callable[[], NodeCommand]
    port: int
    patience: float


class Ended(NamedTuple):
    """The exit code of it all, 0 if it was stopped by a signal.

    Else the `number` of the node that ended by itself, `unready` if it never listened, and
    `last_words`, what it wrote last.
    """

    code: int
    number: int = 0
    unready: bool = False
    last_words: Sequence[str] = ()


class Node:
    """One of them: a program in a session of its own, which no Ctrl-C of a terminal reaches.

    It is asked to end when this process is killed.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._said = b""
        self._reading = asyncio.ensure_future(self._read())
        self.ended = asyncio.ensure_future(process.wait())

    @classmethod
    async def start(cls, command: NodeCommand) -> Node:
        """Run it. What it writes is kept for `last_words`."""
        return cls(
            await asyncio.create_subprocess_exec(
                *command.argv,
                env={**os.environ, **command.env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(
                    ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGTERM.value
                ),
            )
        )

    async def _read(self) -> None:
        assert self._process.stdout
        while chunk := await self._process.stdout.read(_KEPT):
            self._said = (self._said + chunk)[-_KEPT:]

    async def last_words(self) -> list[str]:
        """The last lines that it wrote, once it has ended."""
        with suppress(TimeoutError):  # what left its process group may have its output open
            async with asyncio.timeout(1):
                await asyncio.shield(self._reading)
        return self._said.decode(errors="replace").splitlines()[-_LAST_WORDS:]

    async def listens(self, port: int) -> None:
        """Return once something on this machine listens there."""
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(_LOOKING_AGAIN)

    def stop(self) -> None:
        """Ask it to end."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """End it, and what it has started, now."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def close(self) -> None:
        """After it has ended; what it has left running is ended now."""
        await self.ended
        self.kill()
        self._reading.cancel()


async def run_nodes(starts: Sequence[Start], announce: Callable[[int], None]) -> Ended:
    """Run nodes, one after the other, until one ends or a signal comes; then end all others.

    `announce` is called with the number of each that listens. A first SIGTERM or Ctrl-C asks them
    to end and waits, with several for `GRACE` seconds; a second one kills. `NodeCommand`s are made,
    and may raise, one by one.
    """
    nodes: list[Node] = []
    signals: list[int] = []
    stopped = asyncio.Event()

    def on_signal(number: int) -> None:
        signals.append(number)
        stopped.set()
        if len(signals) > 1:
            for node in nodes:
                node.kill()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    stopping: asyncio.Future[Any] = asyncio.ensure_future(stopped.wait())
    try:
        return await _until_the_first_ends(starts, nodes, stopping, announce)
    finally:
        for node in nodes:
            node.stop()
        await _all_ended(nodes, None if len(nodes) == 1 else GRACE)
        stopping.cancel()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _until_the_first_ends(
    starts: Sequence[Start],
    nodes: list[Node],
    stopping: asyncio.Future[Any],
    announce: Callable[[int], None],
) -> Ended:
    ends: list[asyncio.Future[Any]] = [stopping]
    for start in starts:
        node = await Node.start(start.command())
        nodes.append(node)
        listening = asyncio.ensure_future(node.listens(start.port))
        ends.append(node.ended)
        done, _ = await asyncio.wait(
            {listening, *ends}, timeout=start.patience, return_when=asyncio.FIRST_COMPLETED
        )
        listening.cancel()
        if done.isdisjoint(ends) and listening in done:
            announce(len(nodes) - 1)
            continue
        return await _outcome(nodes, stopping, unready=True)
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    return await _outcome(nodes, stopping, unready=False)


async def _outcome(nodes: Sequence[Node], stopping: asyncio.Future[Any], unready: bool) -> Ended:
    if stopping.done():
        return Ended(0)
    last = len(nodes) - 1
    number = next((number for number, node in enumerate(nodes) if node.ended.done()), last)
    node = nodes[number]
    node.kill()  # it has not begun to listen in time; or what it has left, with its output open
    words = await node.last_words()
    code = await node.ended
    return Ended(code if code > 0 else 1, number, unready and number == last, words)


async def _all_ended(nodes: Sequence[Node], grace: float | None) -> None:
    ends = [node.ended for node in nodes if not node.ended.done()]
    if ends:
        await asyncio.wait(ends, timeout=grace)
    for node in nodes:
        if not node.ended.done():
            node.kill()
        await node.close()
