"""An engine on a thread of this process."""

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial

from core.contract.engine import Engine
from core.engine.home import Crossing, Home, Receive
from core.engine.host import Host
from core.engine.messages import Close, Command, Gone


class ThreadHome(Home):
    """One thread, on which every engine is built, stepped and closed."""

    def __init__(self, create_engine: Callable[[], Engine]) -> None:
        self._create_engine = create_engine
        self._lives: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._host: Host | None = None
        self._thread: threading.Thread | None = None

    def begin(self, receive: Receive) -> None:
        emit = Crossing(receive)
        self._host = Host(self._create_engine, emit)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="enginebay-engine", daemon=True)
            self._thread.start()
        self._lives.put(partial(_live, self._host, emit))

    def send(self, command: Command) -> None:
        assert self._host is not None
        self._host.send(command)

    async def end(self) -> None:
        if self._host is None or self._thread is None:
            return
        self._host.send(Close())
        self._lives.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while live := self._lives.get():
            live()


def _live(host: Host, emit: Receive) -> None:
    try:
        host.run()
    finally:
        emit(Gone())
