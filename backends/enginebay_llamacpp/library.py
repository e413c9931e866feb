"""The C library: llama-cpp-python's bindings, its log, and bindings that keep the GIL.

llama-cpp-python's functions give the GIL away, which is right for long calls (`llama_decode`,
`llama_tokenize`) and costly for short ones while another Python thread is busy: getting it back
takes up to the switch interval, 5 ms. Short calls therefore go through `ctypes.PyDLL`.
"""

import ctypes
import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from enginebay import ReportProgress
from enginebay_checkpoint.libraries import loaded_of
from enginebay_llamacpp.bindings import llama_cpp

mtmd: Any
"""The bindings of the library for pictures and sound; None where there is none."""

try:
    from llama_cpp import mtmd_cpp as mtmd
except (ImportError, OSError, RuntimeError):  # it was compiled with LLAVA_BUILD=OFF
    mtmd = None

logger = logging.getLogger(__name__)

llama: Any = llama_cpp.llama_cpp
"""The bindings, whose own types are those of ctypes."""

_pointer = ctypes.c_void_p
_int = ctypes.c_int32


def _short(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_short_calls, name)
    function.argtypes, function.restype = arguments, result
    return function


_short_calls = ctypes.PyDLL(llama._lib._name)

get_logits = _short("llama_get_logits", _pointer, _pointer)
memory_clear = _short("llama_memory_clear", None, _pointer, ctypes.c_bool)
memory_seq_rm = _short("llama_memory_seq_rm", ctypes.c_bool, _pointer, _int, _int, _int)
memory_seq_cp = _short("llama_memory_seq_cp", None, _pointer, _int, _int, _int, _int)
token_to_piece = _short(
    "llama_token_to_piece", _int, _pointer, _int, ctypes.c_char_p, _int, _int, ctypes.c_bool
)
tokenize = _short(
    "llama_tokenize",
    _int,
    _pointer,
    ctypes.c_char_p,
    _int,
    _pointer,
    _int,
    ctypes.c_bool,
    ctypes.c_bool,
)
vocab_get_attr = _short("llama_vocab_get_attr", ctypes.c_int, _pointer, _int)
vocab_is_eog = _short("llama_vocab_is_eog", ctypes.c_bool, _pointer, _int)

# llama.cpp logs hundreds of lines per model, and warns about options of its own command line.
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.DEBUG, 4: logging.WARNING}
_DEBUG, _ERROR, _CONTINUES = 1, 4, 5


class _Log(threading.local):
    """A thread's last message, and the errors it collects."""

    level = 1
    errors: list[str] | None = None


_log = _Log()


def _on_log(level: int, text: bytes, _: Any) -> None:
    _log.level = level = _log.level if level == _CONTINUES else level
    message = text.decode(errors="replace").rstrip()
    if level == _ERROR and message and _log.errors is not None:
        _log.errors.append(message)
    if message.strip("."):
        logger.log(_LEVELS.get(level, logging.DEBUG), "%s", message)


def _on_media_log(level: int, text: bytes, _: Any) -> None:
    """mtmd's debug messages are left out: they have the text of prompts."""
    if level == _DEBUG or (level == _CONTINUES and _log.level == _DEBUG):
        _log.level = _DEBUG
    else:
        _on_log(level, text, None)


_log_callback = llama.llama_log_callback(_on_log)
_media_log_callback = llama.llama_log_callback(_on_media_log)
llama.llama_log_set(_log_callback, None)
llama.llama_backend_init()
if mtmd:
    mtmd.mtmd_log_set(_media_log_callback, None)
    mtmd.mtmd_helper_log_set(_media_log_callback, None)


@contextmanager
def logged_errors() -> Generator[list[str]]:
    """Collects what the library logs as errors, on this thread, while this is open."""
    errors: list[str] = []
    _log.errors = errors
    try:
        yield errors
    finally:
        _log.errors = None


def address(pointer: Any) -> int:
    """A ctypes pointer as a number, for the short calls; an error for a null pointer."""
    value = ctypes.cast(pointer, ctypes.c_void_p).value
    if value is None:
        raise ValueError("null pointer")
    return value


def read_text(function: Any, *arguments: Any) -> str | None:
    """Text from a function that fills a buffer and returns a length, -1 for none."""
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = function(*arguments, buffer, size)
        if length < 0:
            return None
        if length < size:
            return buffer.raw[:length].decode(errors="replace")
        size = length + 1


class LoadProgress:
    """The library calls this while it loads; False, for an error of the listener, makes it stop.

    Its fractions become those from `start` to `end` of the whole of `stage`, which loads `size`
    bytes.
    """

    def __init__(
        self, report_progress: ReportProgress, stage: str, size: int, start: float, end: float
    ) -> None:
        self._report = report_progress
        self._stage = stage
        self._size = size
        self._start, self._end = start, end
        self.error: BaseException | None = None

    def __call__(self, fraction: float, _: Any) -> bool:
        done = min(self._start + (self._end - self._start) * fraction, self._end)
        try:
            self._report(loaded_of(self._stage, fraction, self._size), done)
        except BaseException as error:
            self.error = error
        return self.error is None
