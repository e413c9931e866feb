"""Jinja templates of strangers: compiled and rendered in processes of their own.

Strangers are everyone but Enginebay: whoever wrote the files of a model, or sends a request.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from enginebay.models.template.beginning import Beginning
from enginebay.models.template.bounds import MOST_SECONDS
from enginebay.models.template.features import TemplateFeatures
from enginebay.models.template.render_process import Job, RenderProcess
from enginebay.models.template.template import (
    Arguments,
    Built,
    TemplateError,
    TemplateStoppedError,
)

_REMEMBERED = 8  # templates
_NAME = "the request's"
_MOST_STOPS, _LONGEST_STOP = 64, 1000  # as in the field `stop` of requests

_Key = tuple[str, frozenset[tuple[str, str]], Beginning]


class ForeignTemplates:
    """Templates of one source, of which `processes` are rendered at a time; others wait.

    Each model has such an object, and all requests that bring a template share one, so a slow
    template holds up only its own kind. Processes start when they are needed; each takes 15 MB.
    `seconds`: the time that the templates of one call of `run` may take, their probes included.
    """

    def __init__(self, seconds: float = MOST_SECONDS, processes: int = 1) -> None:
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(processes, "enginebay-templates")
        self._free = threading.Semaphore(processes)
        self._lock = threading.Lock()
        self._idle: list[RenderProcess] = []
        self._compiled: dict[_Key, TemplateFeatures] = {}  # the last used last
        self._local = threading.local()

    async def run(
        self,
        build: Callable[Arguments, Built],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Built:
        """Return what `build` returns, on a thread where its templates share their time.

        The threads serve these templates alone: one that takes long never holds up other prompts.
        """
        call = partial(build, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._timed, call)

    def compile(
        self, source: str, special_tokens: Mapping[str, str], beginning: Beginning
    ) -> TemplateFeatures:
        """A request's template. Raises `TemplateError` if it does not compile. Blocks."""
        key = (source, frozenset(special_tokens.items()), beginning)
        with self._lock:
            features = self._compiled.pop(key, None)
        if features is None:
            template = ForeignTemplate(self, source, special_tokens, _NAME, "chat_template")
            features = TemplateFeatures(template, beginning, own=False)
        with self._lock:
            self._compiled[key] = features
            for oldest in list(self._compiled)[:-_REMEMBERED]:
                del self._compiled[oldest]
        return features

    def do(self, job: Job) -> Any:
        """What one of the processes says. Blocks until one is free and has done it."""
        with self._free:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            if process is None or not process.alive:
                process = RenderProcess()
            left = getattr(self._local, "left", None)
            began = time.monotonic()
            try:
                return process.do(job, self._seconds if left is None else max(0.0, left))
            finally:
                if left is not None:
                    self._local.left = left - (time.monotonic() - began)
                with self._lock:
                    self._idle.append(process)

    def end_processes(self) -> None:
        """End the processes; later templates start others."""
        with self._lock:
            for process in self._idle:
                process.close()
            self._idle.clear()

    def close(self) -> None:
        """End the processes and threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.end_processes()

    def _timed(self, call: Callable[[], Built]) -> Built:
        self._local.left = self._seconds
        try:
            return call()
        finally:
            self._local.left = None


class ForeignTemplate:
    """A template of a stranger, with the methods of `ChatTemplate`.

    `name` identifies it in messages, `param` is the field that errors blame. `TemplateError` if it
    does not compile, or declares more stop strings than a request may have.
    """

    def __init__(
        self,
        templates: ForeignTemplates,
        source: str,
        special_tokens: Mapping[str, str],
        name: str,
        param: str = "messages",
    ) -> None:
        self.source = source
        self.special_tokens = dict(special_tokens)
        self.name = name
        self._param = param
        self._templates = templates
        facts = self._do(None)
        self.variables = frozenset(facts["variables"])
        self.settings = frozenset(facts["settings"])
        self.mistakes = dict(facts["mistakes"])
        self.keys = frozenset(facts["keys"])
        self.stop_strings = tuple(facts["stop_strings"])
        lengths = list(map(len, self.stop_strings))
        if len(lengths) > _MOST_STOPS or max(lengths, default=0) > _LONGEST_STOP:
            raise TemplateError(
                f"the chat template ({name}) has too many stop strings, or too long ones: at most "
                f"{_MOST_STOPS} of {_LONGEST_STOP} characters",
                param="chat_template",
            )

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """As `ChatTemplate.render`."""
        return str(self._do({"messages": messages, **options}))

    async def run(
        self,
        build: Callable[Arguments, Built],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Built:
        """As `ForeignTemplates.run`."""
        return await self._templates.run(build, *args, **kwargs)

    def _do(self, options: Mapping[str, Any] | None) -> Any:
        try:
            return self._templates.do(Job(self.source, self.special_tokens, self.name, options))
        except TemplateStoppedError as error:
            error.param = self._param
            raise
