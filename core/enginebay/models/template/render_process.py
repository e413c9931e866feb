"""A process that renders chat templates of strangers: both sides of its pipes.

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
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, Any

from enginebay.contract.errors import InvalidRequestError
from enginebay.models.template.bounds import TOO_LATE
from enginebay.models.template.template import (
    ChatTemplate,
    TemplateError,
    TemplateLateError,
    TemplateStoppedError,
)

_MOST_MEMORY = 2**30  # of address space, where the system has such a limit
_REMEMBERED = 8  # compiled templates
_HEAD = 8
_STOPPED = {"late": TemplateLateError, "stopped": TemplateStoppedError}
_ERRORS = {"template": TemplateError, "request": InvalidRequestError}


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
        self._end = weakref.finalize(self, _end, self._process, self._jobs, self._replies)

    def do(self, job: Job, seconds: float) -> Any:
        """The text of a rendering, or what `_facts` says of a template. Blocks.

        Raises what `ChatTemplate` raises, and `TemplateError` if what it is to read is nested too
        deeply. Raises `TemplateLateError` if it takes longer than `seconds`, `TemplateStoppedError`
        if it ends the process; that is dead then.
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
            if late.is_set():
                raise TemplateLateError(job.name, TOO_LATE)
            raise TemplateStoppedError(job.name, "it ended its process")
        kind, said, param = json.loads(reply)
        if kind in _STOPPED:
            raise _STOPPED[kind](job.name, said)
        if kind != "said":
            raise _ERRORS[kind](said, param=param)
        return said

    @property
    def alive(self) -> bool:
        """Whether it can do another job."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process, as happens when nothing refers to this object any more."""
        self._end()


def _end(process: "subprocess.Popen[bytes]", *pipes: IO[bytes]) -> None:
    process.kill()
    for pipe in pipes:
        with suppress(OSError):  # of a job that has not been sent whole
            pipe.close()
    process.wait()


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
            reply = json.dumps(["said", said, None])
        except TemplateStoppedError as error:
            kind = "late" if isinstance(error, TemplateLateError) else "stopped"
            reply = json.dumps([kind, error.reason, None])
        except InvalidRequestError as error:
            kind = "template" if isinstance(error, TemplateError) else "request"
            reply = json.dumps([kind, error.message, error.param])
        except MemoryError:
            reply = json.dumps(["stopped", "it needs too much memory", None])
        _send(replies, reply.encode())


def _facts(template: ChatTemplate) -> dict[str, Any]:
    return {
        "variables": sorted(template.variables),
        "settings": sorted(template.settings),
        "mistakes": dict(template.mistakes),
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
