"""Jinja templates that requests bring: compiled and rendered in processes of their own."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from core.models.template.bounds import MOST_SECONDS
from core.models.template.features import TemplateFeatures
from core.models.template.render_process import Job, RenderProcess
from core.models.template.template import TemplateError, TemplateStoppedError

_PROCESSES = 2
_REMEMBERED = 8  # templates
_NAME = "the request's"
_MOST_STOPS, _LONGEST_STOP = 64, 1000  # as in the field `stop` of requests

_Key = tuple[str, frozenset[tuple[str, str]]]
_Asked = ParamSpec("_Asked")
_Built = TypeVar("_Built")


class RequestTemplates:
    """Templates of requests, at most two rendered at a time; others wait.

    Processes start with the first template and stay until `close`. `seconds`: what one request's
    template may take, its probes included.
    """

    def __init__(self, seconds: float = MOST_SECONDS) -> None:
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(_PROCESSES, "enginebay-templates")
        self._free = threading.Semaphore(_PROCESSES)
        self._lock = threading.Lock()
        self._idle: list[RenderProcess] = []
        self._compiled: dict[_Key, TemplateFeatures] = {}  # the last used last
        self._local = threading.local()

    async def run(
        self, build: Callable[_Asked, _Built], *args: _Asked.args, **kwargs: _Asked.kwargs
    ) -> _Built:
        """What `build` returns, on a thread where this request's templates share their time.

        Threads of their own: templates that take long never hold up prompts of the model's.
        """
        call = partial(build, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._timed, call)

    def compile(self, source: str, special_tokens: Mapping[str, str]) -> TemplateFeatures:
        """A template of a request. Raises `TemplateError` if it does not compile. Blocks."""
        key = (source, frozenset(special_tokens.items()))
        with self._lock:
            features = self._compiled.pop(key, None)
        template = features.template if features else None
        if features is None or (isinstance(template, RequestTemplate) and template.stopped):
            features = TemplateFeatures(RequestTemplate(self, source, special_tokens))
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
            end = getattr(self._local, "end", None)
            seconds = self._seconds if end is None else max(0.0, end - time.monotonic())
            try:
                return process.do(job, seconds)
            finally:
                with self._lock:
                    self._idle.append(process)

    def close(self) -> None:
        """End the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for process in self._idle:
                process.close()
            self._idle.clear()

    def _timed(self, call: Callable[[], _Built]) -> _Built:
        self._local.end = time.monotonic() + self._seconds
        return call()


class RequestTemplate:
    """A template of a request, with what `ChatTemplate` has.

    `TemplateError` if it does not compile, or declares more stop strings than a request may have.
    """

    name = _NAME

    def __init__(
        self, templates: RequestTemplates, source: str, special_tokens: Mapping[str, str]
    ) -> None:
        self.source = source
        self.special_tokens = dict(special_tokens)
        self.stopped: TemplateStoppedError | None = None
        self._templates = templates
        facts = self._do(None)
        self.variables = frozenset(facts["variables"])
        self.settings = frozenset(facts["settings"])
        self.keys = frozenset(facts["keys"])
        self.stop_strings = tuple(facts["stop_strings"])
        lengths = list(map(len, self.stop_strings))
        if len(lengths) > _MOST_STOPS or max(lengths, default=0) > _LONGEST_STOP:
            raise TemplateError(
                f"the chat template ({_NAME}) has too many stop strings, or too long ones: at most "
                f"{_MOST_STOPS} of {_LONGEST_STOP} characters",
                param="chat_template",
            )

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """As `ChatTemplate.render`. Once stopped, it is not tried again: probes are many."""
        if self.stopped:
            raise self.stopped
        return str(self._do({"messages": messages, **options}))

    def _do(self, options: Mapping[str, Any] | None) -> Any:
        try:
            return self._templates.do(Job(self.source, self.special_tokens, self.name, options))
        except TemplateStoppedError as error:
            error.param = "chat_template"
            self.stopped = error
            raise
