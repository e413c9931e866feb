"""States of sequences that no slot holds any more: in RAM, and in files that outlive the engine."""

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from enginebay.engine.kv_store.prefix_index import PrefixIndex, packed
from enginebay.engine.kv_store.state_folder import StateFolder

_REPLACED = 7 / 8
"""A sequence of which so much is in a newer one is not worth its place."""

WRITING = 128 << 20
"""Bytes of states that may wait to be written, also where none are kept in RAM."""

_LACKING = 16
"""A sequence of which no more tokens are missing in a saved one is not saved."""


_BELIEVED = 60.0
"""Seconds for which the disk counts as slow as it was, as nothing is read from a slow one."""


@dataclass(slots=True, eq=False)
class Saved:
    """A saved sequence: in RAM while there is a `state`, on disk if there is a `path`.

    `writing`: its file is to be written. `dropped`: it is not to be found any more. The files of
    those that it `replaces` are deleted once its own is there.
    """

    key: bytes
    tokens: bytes
    nbytes: int
    state: memoryview | None = None
    path: Path | None = None
    writing: bool = False
    dropped: bool = False
    replaces: list["Saved"] = field(default_factory=list)


class KvStore:
    """States by key and tokens. One thread writes files, another reads them.

    Every method is called on the engine thread.
    """

    def __init__(
        self,
        ram: int,
        folder: StateFolder | None,
        *,
        cuts: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ram`: the limit of all states in RAM, in bytes, also of those that are being written.

        Where that is less than `WRITING`, so much may be on its way to the disk, and one state
        however large it is. `cuts`: the beginning of a state is of use, too; otherwise it is as a
        whole, or not at all.
        """
        self._limit = ram
        self._folder = folder
        self._cuts = cuts
        self._clock = clock
        self._index: PrefixIndex[Saved] = PrefixIndex()
        self._held: OrderedDict[Saved, None] = OrderedDict()  # in RAM, the last used one last
        self._changed = threading.Condition(threading.RLock())
        self._writes: queue.SimpleQueue[Saved | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[tuple[Saved, Future[memoryview | None]] | None]
        self._reads = queue.SimpleQueue()
        self._token_bytes = 0.0
        self._threads: list[threading.Thread] = []
        self.ram_bytes = 0
        self.disk_bytes = 0
        self.changes = 0
        """How often something was saved or dropped."""
        self.read_speed: float | None = None
        """Bytes a second of the last file that was read; None before that."""
        self._read_at = clock()
        if folder:
            for path, header in folder.scan():
                self._add(Saved(header.key, header.tokens, header.nbytes, path=path))
            self.disk_bytes = folder.nbytes()
            for work in (self._write, self._read):
                thread = threading.Thread(target=work, name="enginebay-kv-store", daemon=True)
                thread.start()
                self._threads.append(thread)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def outlives(self) -> bool:
        """Whether what is saved outlives the engine."""
        return self._folder is not None

    def find(self, key: bytes, token_ids: Sequence[int]) -> tuple[Saved, int] | None:
        """The saved sequence with the longest usable prefix of these tokens, and its length."""
        with self._changed:
            if not self._index:
                return None
            search = self._index.longest if self._cuts else self._index.longest_whole
            return search(key, packed(token_ids))

    def has(self, key: bytes, token_ids: Sequence[int]) -> bool:
        """Whether a state of these tokens need not be saved, for one that there is."""
        with self._changed:
            found = self.find(key, token_ids)
            lacking = _LACKING if self._cuts else 0
            if found is None or found[1] < len(token_ids) - lacking:
                return False
            self._use(found[0])
            return True

    def has_room(self, tokens: int) -> bool:
        """Whether a state of so many tokens could be saved now, to judge by the last one."""
        with self._changed:
            return self._has_room(int(self._token_bytes * tokens))

    def put(self, key: bytes, token_ids: Sequence[int], state: memoryview) -> bool:
        """Save a state; whether there was room for it. Those that it makes needless are dropped."""
        saved = Saved(key, packed(token_ids), state.nbytes, state)
        self._token_bytes = saved.nbytes / len(token_ids)
        with self._changed:
            if not self._has_room(saved.nbytes):
                return False
            self._trim(self._limit - saved.nbytes)
            if self._cuts:
                for other in self._index.within(key, saved.tokens, _REPLACED):
                    saved.replaces += [other, *other.replaces]
                    self._drop(other)
            self._add(saved)
            self._held[saved] = None
            self.ram_bytes += saved.nbytes
            if self._folder:
                saved.writing = True
                self._writes.put(saved)
        return True

    def fetch(self, saved: Saved) -> Future[memoryview | None]:
        """Its state, None if it is gone after all; a file is read on another thread.

        It is not read if that is cancelled before its turn.
        """
        future: Future[memoryview | None] = Future()
        with self._changed:
            self._use(saved)
            if saved.state is not None or saved.path is None:
                future.set_result(saved.state)
            else:
                self._reads.put((saved, future))
        return future

    def seconds(self, saved: Saved) -> float | None:
        """How long its file takes to read, by the last one; None if that is not known any more."""
        if self.read_speed is None or self._clock() - self._read_at > _BELIEVED:
            return None
        return saved.nbytes / self.read_speed

    def forget(self, saved: Saved) -> None:
        """Drop a state that turned out to be of no use."""
        with self._changed:
            self._drop(saved)
            if self._folder and saved.path:
                self._folder.delete(saved.path)

    def flush(self, deadline: float, *, all: bool = True) -> None:
        """Wait until the next file is written, or all are, or the clock shows `deadline`."""
        with self._changed:
            while any(saved.writing for saved in self._held):
                left = deadline - self._clock()
                if left <= 0 or not self._changed.wait(left) or not all:
                    return

    def close(self, deadline: float) -> None:
        """Finish what is being written, until the clock shows `deadline`, and forget the rest."""
        self.flush(deadline)
        with suppress(queue.Empty):
            while True:
                self._writes.get_nowait()
        self._writes.put(None)
        self._reads.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock()))

    def _add(self, saved: Saved) -> None:
        self.changes += 1
        before = self._index.add(saved.key, saved.tokens, saved)
        if before:
            before.dropped = True
            self._release(before)

    def _drop(self, saved: Saved) -> None:
        self.changes += 1
        self._index.remove(saved.key, saved.tokens, saved)
        saved.dropped = True
        saved.writing = False
        self._release(saved)

    def _release(self, saved: Saved) -> None:
        """Free its RAM."""
        if saved in self._held:
            del self._held[saved]
            self.ram_bytes -= saved.nbytes
        saved.state = None

    def _use(self, saved: Saved) -> None:
        if saved in self._held:
            self._held.move_to_end(saved)
        if self._folder and saved.path:
            self._folder.touch(saved.path)

    def _has_room(self, nbytes: int) -> bool:
        fixed = sum(saved.nbytes for saved in self._held if saved.writing)
        if self._folder is None:
            return nbytes <= self._limit
        return not fixed or fixed + nbytes <= max(self._limit, WRITING)

    def _trim(self, limit: int) -> None:
        """Free what was not used for longest, but for what is still to be written."""
        for saved in [saved for saved in self._held if not saved.writing]:
            if self.ram_bytes <= limit:
                return
            self._release(saved)
            if saved.path is None:
                self._index.remove(saved.key, saved.tokens, saved)

    def _write(self) -> None:
        assert self._folder
        while saved := self._writes.get():
            state = saved.state
            if state is not None and not saved.dropped:
                path = self._folder.write(saved.key, saved.tokens, state)
                self._finish(saved, path)
            del state

    def _finish(self, saved: Saved, path: Path | None) -> None:
        """A state was written, or was not."""
        assert self._folder
        with self._changed:
            # A dropped one was replaced meanwhile, and its file will be, with those it replaces.
            replaced = [] if saved.dropped else saved.replaces
            saved.replaces = []
            saved.path, saved.writing = path, False
            self._trim(self._limit)
            self._changed.notify_all()
        for other in replaced:
            if path and other.path:
                self._folder.delete(other.path)
        self.disk_bytes = self._folder.nbytes()

    def _read(self) -> None:
        assert self._folder
        while job := self._reads.get():
            saved, future = job
            if not future.set_running_or_notify_cancel():
                continue
            began = self._clock()
            assert saved.path
            state = self._folder.read(saved.path, saved.key, saved.tokens, saved.nbytes)
            took = self._clock() - began
            with self._changed:
                if state is None:
                    self._drop(saved)
                elif took > 0:
                    self.read_speed, self._read_at = saved.nbytes / took, self._clock()
            future.set_result(state)
