"""Reports transformers' progress in loading weights, without bars on the terminal."""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging as transformers_logging

Report = Callable[[float], None]
_Factory = Callable[..., Any]

_of_this_thread = threading.local()


class _Progress:
    """Stands in for a tqdm bar."""

    def __init__(self, report: Report, iterable: Iterable[Any] = (), **settings: Any) -> None:
        self._report = report
        self._iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        total = len(self._iterable) if isinstance(self._iterable, Sized) else 0
        for done, item in enumerate(self._iterable, start=1):
            yield item
            if total:
                self._report(done / total)

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


@contextmanager
def weights_progress(report: Report) -> Generator[None]:
    """While this is open, loading on this thread calls `report(fraction)` and draws no bar.

    transformers has one hook for the whole process and models may load on several threads at
    once, so the hook is set once and asks which thread is calling.
    """
    _install()
    _of_this_thread.report = report
    try:
        yield
    finally:
        del _of_this_thread.report


_lock = threading.Lock()
_installed = False


def _install() -> None:
    global _installed
    with _lock:
        if _installed:
            return
        previous = transformers_logging.set_tqdm_hook(None)

        def hook(factory: _Factory, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if report := getattr(_of_this_thread, "report", None):
                return _Progress(report, *args, **kwargs)
            return previous(factory, args, kwargs) if previous else factory(*args, **kwargs)

        transformers_logging.set_tqdm_hook(hook)
        _installed = True
