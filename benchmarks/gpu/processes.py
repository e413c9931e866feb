"""Run one stage's command with a time limit, and end every process that it has started."""

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
_MARK = "ENGINEBAY_GPU_STAGE"
"""An environment variable that all processes of a stage inherit, in whichever group they are."""

LOG_BYTES = 15 * 2**20
"""The largest log: what a device machine returns must be below 16 MiB a file."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended; `code` is None if it was killed at its limit."""

    code: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Processes:
    """Runs commands, one at a time.

    `look` is how often a running command is looked at, in seconds. `patience` is how long it may
    take to end after an interrupt, before it is killed.
    """

    clock: Callable[[], float] = time.monotonic
    look: float = 0.5
    patience: float = 5.0

    def run(
        self,
        command: Sequence[str],
        log: Path,
        limit: float,
        environment: Mapping[str, str],
        watch: Callable[[], None] = lambda: None,
    ) -> Ended:
        """Run it in a new process group, its output appended to `log`; `watch` is called often.

        No process of it is left afterwards, whether it ended, crashed or was killed.
        """
        mark = uuid.uuid4().hex
        start = self.clock()
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment, _MARK: mark},
                start_new_session=True,
            )
        try:
            code = self._wait(process, log, start + limit, watch)
        finally:
            _kill(process, mark)
        trim(log, LOG_BYTES)
        return Ended(code, self.clock() - start)

    def _wait(
        self,
        process: "subprocess.Popen[bytes]",
        log: Path,
        deadline: float,
        watch: Callable[[], None],
    ) -> int | None:
        while self.clock() < deadline:
            try:
                return process.wait(self.look)
            except subprocess.TimeoutExpired:
                trim(log, LOG_BYTES)
                watch()
        if os.name == "posix":  # pytest then ends the test, and prints where it was
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self.patience)
        return None


def _kill(process: "subprocess.Popen[bytes]", mark: str) -> None:
    """Kill the group, and processes that have left it: servers have sessions of their own."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    while left := list(_marked(mark)):
        for each in left:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=5)
    process.wait()


def _marked(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK) == mark:
                yield process
        except psutil.Error:
            continue


def trim(log: Path, limit: int) -> None:
    """Cut the middle out of a log that is larger than `limit` bytes; its process may go on."""
    if log.stat().st_size <= limit:
        return
    content = log.read_bytes()
    begin, end = content[: limit // 4], content[-limit // 4 :]
    with log.open("r+b") as file:
        file.truncate(0)
        file.write(begin + b"\n[... the middle was cut out ...]\n" + end)


def tail(log: Path, begin: int, lines: int = 30) -> list[str]:
    """The last lines that were written to a log after its first `begin` bytes."""
    if not log.exists():
        return []
    with log.open("rb") as file:
        size = log.stat().st_size
        file.seek(max(min(begin, size), size - 64 * 1024))
        text = file.read().decode(errors="replace")
    return [line[:300] for line in text.splitlines()[-lines:]]
