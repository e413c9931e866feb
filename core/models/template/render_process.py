"""A process that renders chat templates of requests: both sides of its pipes.

A thread that evaluates a hostile expression can neither be stopped nor kept from memory; a process
can be killed, and has an address space that can be limited.

A message is its length in 8 bytes, then its bytes. To the process: a pickled `Job`. From it: JSON,
since nothing that a template has touched should be unpickled.
"""

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, Any

from core.models.template.bounds import TOO_LATE
from core.models.template.template import ChatTemplate, TemplateError, TemplateStoppedError

_MOST_MEMORY = 2**30  # of address space, where the system has such a limit
_REMEMBERED = 8  # compiled templates
_HEAD = 8


@dataclass(frozen=True, slots=True)
class Job:
    """A template to compile and, with `options` of `ChatTemplate.render`, to render."""

    source: str
    special_tokens: Mapping[str, str]
    name: str
    options: Mapping[str, Any] | None = None


class RenderProcess:
    """One process, which does one job at a time. Starts at once."""

    def __init__(self) -> None:
        paths = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C is the server's
        )
        assert self._process.stdin
        assert self._process.stdout
        self._jobs, self._replies = self._process.stdin, self._process.stdout

    def do(self, job: Job, seconds: float) -> Any:
        """The text of a rendering, or what `_facts` says of a template. Blocks.

        Raises `TemplateError` as the template does, or if what it is to read is nested too deeply;
        `TemplateStoppedError` if it takes longer than `seconds` or ends the process; that is dead
        then.
        """
        try:
            sent = pickle.dumps(job)
        except RecursionError as error:
            raise TemplateError(
                f"what the chat template ({job.name}) is to read is nested too deeply",
                param="messages",
            ) from error
        late = threading.Event()

        def stop() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(seconds, stop)
        timer.start()
        try:
            _send(self._jobs, sent)
            reply = _receive(self._replies)
        except OSError:
            reply = None
        finally:
            timer.cancel()
        if reply is None:
            self.close()
            raise TemplateStoppedError(
                job.name, TOO_LATE if late.is_set() else "it ended its process"
            )
        kind, said = json.loads(reply)
        if kind == "stopped":
            raise TemplateStoppedError(job.name, said)
        if kind == "error":
            raise TemplateError(said, param="messages")
        return said

    @property
    def alive(self) -> bool:
        """Whether it can do another job."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        for pipe in (self._jobs, self._replies):
            with suppress(OSError):  # of a job that has not been sent whole
                pipe.close()
        self._process.wait()


def _send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(len(data).to_bytes(_HEAD, "big"))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    """The next message; None if the other side is gone."""
    size = int.from_bytes(pipe.read(_HEAD), "big")
    data = pipe.read(size)
    return data if size and len(data) == size else None


def _serve(jobs: IO[bytes], replies: IO[bytes]) -> None:
    """Do jobs until the server closes the pipe, or is gone."""
    compiled = lru_cache(_REMEMBERED)(ChatTemplate)
    while data := _receive(jobs):
        job: Job = pickle.loads(data)
        try:
            template = compiled(job.source, _Hashable(job.special_tokens), name=job.name)
            said = template.render(**job.options) if job.options else _facts(template)
            reply = json.dumps(["said", said]).encode()
        except TemplateStoppedError as error:
            reply = json.dumps(["stopped", error.reason]).encode()
        except TemplateError as error:
            reply = json.dumps(["error", str(error)]).encode()
        except MemoryError:
            reply = json.dumps(["stopped", "it needs too much memory"]).encode()
        _send(replies, reply)


def _facts(template: ChatTemplate) -> dict[str, list[str]]:
    return {
        "variables": sorted(template.variables),
        "settings": sorted(template.settings),
        "keys": sorted(template.keys),
        "stop_strings": list(template.stop_strings),
    }


class _Hashable(dict[str, str]):
    """Special tokens as a key of the cache."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def _limit_memory() -> None:
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))


if __name__ == "__main__":
    _limit_memory()
    _serve(sys.stdin.buffer, sys.stdout.buffer)
