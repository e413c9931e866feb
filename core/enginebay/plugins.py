"""The typed plugin manager; the only module that uses pluggy."""

import importlib.metadata
import importlib.util
import logging
import sys
import traceback
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pluggy

from enginebay.contract import hookspecs
from enginebay.contract.backend import Backend
from enginebay.contract.cluster import Cluster, ClusterSettings
from enginebay.contract.formats import ReasoningFormat, ToolFormat
from enginebay.contract.hookspecs import hookimpl
from enginebay.contract.registers import BackendRegister, Register
from enginebay.contract.routes import RouteRegister
from enginebay.contract.types import Delta, GenerationRequest
from enginebay.contract.wing import Wing

ENGINES = ("enginebay_exllamav2", "enginebay_hf", "enginebay_llamacpp")
WINGS = ("enginebay_kobold", "enginebay_cluster")
BUILTIN = (*ENGINES, *WINGS, "enginebay_parsers")
"""Packages of Enginebay itself that register like any plugin; one that is not there is left out."""
ENTRY_POINT_GROUP = "enginebay"
_IN_THE_CONFIG = ("auto", "none")
_HOOKS = (
    "register_backends",
    "register_parsers",
    "register_routes",
    "register_wings",
    "generate",
    "make_cluster",
)
_LOADERS = tuple(
    str(Path(str(file)).parent) for file in (__file__, pluggy.__file__, importlib.__file__)
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plugin:
    """A discovered plugin: its name, its source, and its error, if any.

    `source`: "built in", "entry point of" a distribution, or the file. `version`: the
    distribution's. `backends`, `reasoning`, `tools`, `routes` and `wings` are the names that it
    registers, `hooks` those that it implements.
    """

    name: str
    source: str
    version: str = ""
    backends: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    wings: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    blocked: bool = False
    error: str | None = None


def wings_of_enginebay() -> dict[str, Wing]:
    """The wings that are installed with Enginebay, by name, whether a config blocks them or not.

    They are known before a config is read, because each has a section there. One that cannot be
    imported is left out.
    """
    register: Register[Wing] = Register("wing", Wing)
    for package in filter(is_there, WINGS):
        with suppress(Exception):  # `Plugins` reports it
            module = importlib.import_module(package)
            if hasattr(module, "register_wings"):
                module.register_wings(register)
    return dict(register)


class _Dispatch:
    """The built-in implementation of the `generate` hook."""

    @hookimpl(trylast=True)
    def generate(self, backend: Backend, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        return backend.generate(request)


def _log_call(hook: str, implementations: Sequence[pluggy.HookImpl], arguments: object) -> None:
    names = ", ".join(each.plugin_name for each in reversed(implementations))  # as they are called
    logger.debug("hook %s: %s", hook, names or "no implementation")


def _log_result(
    outcome: pluggy.Result[object], hook: str, implementations: object, arguments: object
) -> None:
    if outcome.exception:
        logger.debug("hook %s raised %r", hook, outcome.exception)


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    source: str
    version: str
    load: Callable[[], object]


class Plugins:
    """Everything the plugins contribute.

    Built-in plugins come first, then entry points of the group `enginebay`, then the single files
    of `folder`, except those that begin with an underscore. A plugin that fails to load or register
    is listed with its error, and everything it registered is removed; the others work.

    `version` is that of Enginebay itself.
    """

    def __init__(self, *, folder: Path | None = None, blocked: Iterable[str] = ()) -> None:
        self.version = _version("enginebay")  # once: finding it out takes a third of a millisecond
        self.backends = BackendRegister()
        self.reasoning: Register[ReasoningFormat] = Register(
            "reasoning format", ReasoningFormat, reserved=_IN_THE_CONFIG
        )
        self.tools: Register[ToolFormat] = Register(
            "tool format", ToolFormat, reserved=_IN_THE_CONFIG
        )
        self.routes = RouteRegister()
        self.wings: Register[Wing] = Register("wing", Wing)
        self.found: list[Plugin] = []
        self._manager = pluggy.PluginManager("enginebay")
        self._manager.add_hookspecs(hookspecs)
        self._manager.register(_Dispatch(), name="(built in)")
        if logger.isEnabledFor(logging.DEBUG):
            self._manager.add_hookcall_monitoring(_log_call, _log_result)
        blocked = set(blocked)
        if "backends" in blocked:  # once one plugin
            blocked |= {name_of(package) for package in ENGINES}
        for candidate in _candidates(folder):
            self.found.append(self._load(candidate, blocked=candidate.name in blocked))

    def generate(self, backend: Backend, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """The stream that answers `request`, from the first plugin that returns one."""
        stream = self._manager.hook.generate(backend=backend, request=request)
        return cast(AsyncGenerator[Delta, None], stream)

    def cluster(self, settings: ClusterSettings) -> Cluster | None:
        """The cluster, from the first plugin that makes one; nothing is imported or connected."""
        return cast(Cluster | None, self._manager.hook.make_cluster(settings=settings))

    def _load(self, candidate: _Candidate, *, blocked: bool) -> Plugin:
        name, source, version = candidate.name, candidate.source, candidate.version
        if blocked:
            return Plugin(name, source, version, blocked=True)
        registers: list[Register[Any]] = [self.backends, self.reasoning, self.tools, self.routes]
        registers += [self.wings, self.routes.error_shapes]
        before = [set(register) for register in registers]
        plugin: object = None
        try:
            if self._manager.has_plugin(name):
                raise ValueError(f"a plugin named {name!r} is already registered")
            plugin = candidate.load()
            self._manager.register(plugin, name=name)
            hooks = self._hooks(plugin)
            self._manager.check_pending()
            self._collect(plugin)
        except (Exception, SystemExit) as error:  # a script without a guard leaves when imported
            reason = _reason(error)
            logger.warning("skipping plugin %s (%s): %s", name, source, reason)
            if plugin is not None and self._manager.is_registered(plugin):
                self._manager.unregister(plugin)
            for register, kept in zip(registers, before, strict=True):
                for added in set(register) - kept:
                    register.forget(added)
            return Plugin(name, source, version, error=reason)
        backends, reasoning, tools, routes, wings, _ = (
            tuple(item for item in register if item not in kept)
            for register, kept in zip(registers, before, strict=True)
        )
        return Plugin(name, source, version, backends, reasoning, tools, routes, wings, hooks)

    def _hooks(self, plugin: object) -> tuple[str, ...]:
        callers = self._manager.get_hookcallers(plugin)
        if not callers:
            raise ValueError(
                "it implements no hook: a function with @hookimpl and the name of a hook"
            )
        for caller in callers:
            near = get_close_matches(caller.name, _HOOKS, n=1)
            if near and not caller.has_spec():
                raise ValueError(f"unknown hook {caller.name!r}; did you mean {near[0]!r}?")
        return tuple(sorted(caller.name for caller in callers))

    def _collect(self, plugin: object) -> None:
        others = [other for other in self._manager.get_plugins() if other is not plugin]
        hook = self._manager.subset_hook_caller("register_backends", others)
        hook(register=self.backends)
        hook = self._manager.subset_hook_caller("register_parsers", others)
        hook(reasoning=self.reasoning, tools=self.tools)
        hook = self._manager.subset_hook_caller("register_routes", others)
        hook(register=self.routes)
        hook = self._manager.subset_hook_caller("register_wings", others)
        hook(register=self.wings)


def _reason(error: BaseException) -> str:
    """The error on one line, with the last line of the plugin's own code that ran."""
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*_LOADERS, "<frozen"))]
    if not own:
        return reason
    folder = Path(own[0].filename).parent
    last = [frame for frame in own if folder in Path(frame.filename).parents][-1]
    return f"{reason} ({Path(last.filename).name}, line {last.lineno})"


def _candidates(folder: Path | None) -> Iterator[_Candidate]:
    version = _version("enginebay")
    for package in BUILTIN:
        if is_there(package):
            yield _Candidate(
                name_of(package), "built in", version, partial(importlib.import_module, package)
            )
    for entry in sorted(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)):
        source = f"entry point of {entry.dist.name if entry.dist else entry.value}"
        yield _Candidate(entry.name, source, entry.dist.version if entry.dist else "", entry.load)
    if folder is not None and folder.is_dir():
        for path in sorted(folder.glob("[!_]*.py")):
            yield _Candidate(path.stem, str(path), "", partial(_load_file, path))


def is_there(package: str) -> bool:
    """Whether a package can be imported; it is not."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def name_of(package: str) -> str:
    """The name of a built-in plugin."""
    return package.removeprefix("enginebay_")


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"enginebay_plugin_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses and pydantic look up annotations
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
