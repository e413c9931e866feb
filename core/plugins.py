"""The typed front of the plugin manager; the only module that runs pluggy."""

import importlib.metadata
import importlib.util
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import cast

import pluggy

from core import hookspecs
from core.backend import Backend
from core.hookspecs import hookimpl
from core.parsing import ReasoningFormat, ToolFormat
from core.registers import BackendRegister, Register
from core.types import Delta, GenerationRequest

BUILTIN = ("backends", "parsers")
ENTRY_POINT_GROUP = "enginebay"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin that was found: its name, where it came from, what went wrong if anything.

    `registers`: the names of the backends and formats it contributes.
    """

    name: str
    source: str
    version: str = ""
    registers: tuple[str, ...] = ()
    blocked: bool = False
    error: str | None = None


class _Dispatch:
    """The built-in end of the `generate` hook."""

    @hookimpl(trylast=True)
    def generate(self, backend: Backend, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        return backend.generate(request)


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    source: str
    version: str
    load: Callable[[], object]


class Plugins:
    """Everything the plugins contribute.

    Built-in plugins come first, then entry points of the group `enginebay`, then the single files
    of `folder`. A plugin that fails to load, or to register, is listed with its error and left out;
    the rest works.
    """

    def __init__(self, *, folder: Path | None = None, blocked: Iterable[str] = ()) -> None:
        self.backends = BackendRegister()
        self.reasoning: Register[ReasoningFormat] = Register("reasoning format")
        self.tools: Register[ToolFormat] = Register("tool format")
        self.found: list[Plugin] = []
        self._manager = pluggy.PluginManager("enginebay")
        self._manager.add_hookspecs(hookspecs)
        self._manager.register(_Dispatch(), name="core")
        blocked = set(blocked)
        for candidate in _candidates(folder):
            self.found.append(self._load(candidate, blocked=candidate.name in blocked))

    @property
    def version(self) -> str:
        """The version of Enginebay itself."""
        return _version("enginebay")

    def generate(self, backend: Backend, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """The stream that answers `request`, from the first plugin that has one."""
        stream = self._manager.hook.generate(backend=backend, request=request)
        return cast(AsyncGenerator[Delta, None], stream)

    def _load(self, candidate: _Candidate, *, blocked: bool) -> Plugin:
        name, source, version = candidate.name, candidate.source, candidate.version
        if blocked:
            return Plugin(name, source, version, blocked=True)
        before = self._registered()
        try:
            plugin = candidate.load()
            self._manager.register(plugin, name=name)
            self._manager.check_pending()
            self._collect(plugin)
        except Exception as error:
            logger.warning("plugin %s (%s) is left out: %s", name, source, error)
            if self._manager.has_plugin(name):
                self._manager.unregister(name=name)
            return Plugin(name, source, version, error=f"{type(error).__name__}: {error}")
        registers = tuple(item for item in self._registered() if item not in before)
        return Plugin(name, source, version, registers)

    def _registered(self) -> list[str]:
        return [*self.backends, *self.reasoning, *self.tools]

    def _collect(self, plugin: object) -> None:
        others = [other for other in self._manager.get_plugins() if other is not plugin]
        hook = self._manager.subset_hook_caller("register_backends", others)
        hook(register=self.backends)
        hook = self._manager.subset_hook_caller("register_parsers", others)
        hook(reasoning=self.reasoning, tools=self.tools)


def _candidates(folder: Path | None) -> Iterator[_Candidate]:
    version = _version("enginebay")
    for name in BUILTIN:
        yield _Candidate(name, "built in", version, partial(importlib.import_module, name))
    for entry in sorted(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)):
        source = entry.dist.name if entry.dist else entry.value
        yield _Candidate(entry.name, source, entry.dist.version if entry.dist else "", entry.load)
    if folder is not None and folder.is_dir():
        for path in sorted(folder.glob("*.py")):
            yield _Candidate(path.stem, str(path), "", partial(_load_file, path))


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"enginebay_plugin_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
