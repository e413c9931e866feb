"""The typed plugin manager; the only module that uses pluggy."""

import importlib.metadata
import importlib.util
import logging
import re
import sys
import traceback
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pluggy

from enginebay.contract import hookspecs
from enginebay.contract.backend import Backend
from enginebay.contract.formats import ReasoningFormat, ToolFormat
from enginebay.contract.hookspecs import hookimpl
from enginebay.contract.registers import BackendRegister, Register
from enginebay.contract.routes import RouteRegister
from enginebay.contract.types import Delta, GenerationRequest
from enginebay.contract.wing import Wing

ENGINES = ("enginebay_exllamav2", "enginebay_hf", "enginebay_llamacpp")
WINGS = (
    "enginebay_cluster",
    "enginebay_responses",
    "enginebay_messages",
    "enginebay_llama_server",
    "enginebay_tei",
    "enginebay_ollama",
    "enginebay_kobold",
    "enginebay_page",
    "enginebay_conformance",
)
"""Wings start in this order and end in the other one: the first one may share parts of others."""
BUILTIN = (*ENGINES, *WINGS, "enginebay_parsers")
"""Packages of Enginebay itself that register like any plugin; one that is not there is left out."""
ENTRY_POINT_GROUP = "enginebay"
_IN_THE_CONFIG = ("auto", "none")
_BUILT_IN = "(built in)"
_LOADERS = tuple(
    str(Path(str(file)).parent) for file in (__file__, pluggy.__file__, importlib.__file__)
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plugin:
    """A discovered plugin: its name, its source, and its error, if any.

    `source`: "built in", "entry point of" a distribution, or the file. `version`: the
    distribution's. `misfit`: the requirement of the distribution that this Enginebay does not meet.
    `backends`, `reasoning`, `tools`, `routes` and `wings` are the names that it registers, `hooks`
    those that it implements.
    """

    name: str
    source: str
    version: str = ""
    misfit: str = ""
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
    imported is left out: `Plugins` reports it, and `why_absent` to a config that has its section.
    """
    register: Register[Wing] = Register("wing", Wing)
    for package in filter(is_there, WINGS):
        with suppress(Exception, SystemExit):
            _register_wings(package, register)
    return dict(register)


def why_absent(package: str) -> str | None:
    """Return why a package of wings cannot be used, as a relative clause; None if it can be."""
    if not is_there(package):
        return "which is not installed"
    try:
        _register_wings(package, Register("wing", Wing))
    except (Exception, SystemExit) as error:
        return f"which cannot be imported: {_reason(error)}"
    return None


def _register_wings(package: str, register: Register[Wing]) -> None:
    module = importlib.import_module(package)
    if hasattr(module, "register_wings"):
        module.register_wings(register)


class _Dispatch:
    """The built-in implementation of the `generate` hook. `stream`: the one that it made last."""

    stream: AsyncGenerator[Delta, None] | None = None

    @hookimpl(trylast=True)
    def generate(self, backend: Backend, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        self.stream = backend.generate(request)
        return self.stream


async def _with_end(
    stream: AsyncGenerator[Delta, None], inner: AsyncGenerator[Delta, None]
) -> AsyncGenerator[Delta, None]:
    """Yield what a plugin's stream yields, and end the backend's stream with it, if it fails too.

    A plugin that only loops over the backend's stream would leave it to the garbage collector.
    """
    try:
        async with aclosing(stream):
            async for delta in stream:
                yield delta
    finally:
        with suppress(RuntimeError):  # a task of the plugin is reading it
            await inner.aclose()


def _log_call(hook: str, implementations: Sequence[pluggy.HookImpl], arguments: object) -> None:
    names = ", ".join(each.plugin_name for each in reversed(implementations))  # as they are called
    logger.debug("hook %s: %s", hook, names or "no implementation")


def _log_result(
    outcome: pluggy.Result[object], hook: str, implementations: object, arguments: object
) -> None:
    if outcome.exception:
        logger.debug("hook %s raised %r", hook, outcome.exception)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plugin that is there, imported or not.

    `module`: the top module of its code. `distribution` or `file`: where it comes from, unless it
    is built in.
    """

    name: str
    source: str
    version: str
    load: Callable[[], object]
    module: str
    distribution: str = ""
    file: Path | None = None


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
        self._by_module: dict[str, str] = {}
        self._manager = pluggy.PluginManager("enginebay")
        self._manager.add_hookspecs(hookspecs)
        self._dispatch = _Dispatch()
        self._manager.register(self._dispatch, name=_BUILT_IN)
        if logger.isEnabledFor(logging.DEBUG):
            self._manager.add_hookcall_monitoring(_log_call, _log_result)
        blocked = set(blocked)
        if "backends" in blocked:  # once one plugin
            blocked |= {name_of(package) for package in ENGINES}
        for candidate in discovered(folder):
            self.found.append(self._load(candidate, blocked=candidate.name in blocked))

    def generate(self, backend: Backend, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """The stream that answers `request`, from the first plugin that returns one."""
        self._dispatch.stream = None
        stream = self._manager.hook.generate(backend=backend, request=request)
        inner = self._dispatch.stream
        if inner is None or stream is inner:
            return cast(AsyncGenerator[Delta, None], stream)
        return _with_end(stream, inner)

    def first(self, hook: str, **arguments: object) -> Any:
        """What the first plugin returns that implements a hook of a wing; None without one."""
        return getattr(self._manager.hook, hook)(**arguments)

    def blame(self, error: BaseException, hook: str = "") -> None:
        """Add a note to an error that names the plugin in whose code it was raised, if any.

        Without one, the note names the plugins that implement `hook`.
        """
        causes = [error]
        while (cause := causes[-1].__cause__) and cause not in causes:
            causes.append(cause)
        frames = [
            frame
            for each in causes
            for frame, _ in reversed(list(traceback.walk_tb(each.__traceback__)))
        ]
        tops = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames]
        names = [self._by_module[top] for top in tops if top in self._by_module][:1]
        if not names and hook:
            implementations = getattr(self._manager.hook, hook).get_hookimpls()
            names = [each.plugin_name for each in implementations if each.plugin_name != _BUILT_IN]
        note = f"in the plugin {', '.join(names)}"
        if names and note not in getattr(error, "__notes__", ()):
            error.add_note(note)

    def _load(self, candidate: Candidate, *, blocked: bool) -> Plugin:
        name, source, version = candidate.name, candidate.source, candidate.version
        misfit = _misfit(candidate.distribution, self.version) if candidate.distribution else ""
        if blocked:
            return Plugin(name, source, version, misfit, blocked=True)
        registers: list[Register[Any]] = [self.backends, self.reasoning, self.tools, self.routes]
        registers += [self.wings, self.routes.error_shapes]
        before = [set(register) for register in registers]
        plugin: object = None
        try:
            if self._manager.has_plugin(name):
                raise ValueError(f"a plugin named {name!r} is already registered")
            plugin = candidate.load()
            self._manager.register(plugin, name=name)
            hooks = self._hooks_of(plugin)
            self._manager.check_pending()
            self._collect(plugin)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a script without a guard exits when it is imported
            reason = "; ".join(filter(None, (_reason(error), misfit)))
            logger.warning("skipping plugin %s (%s): %s", name, source, reason)
            if plugin is not None and self._manager.is_registered(plugin):
                self._manager.unregister(plugin)
            for register, kept in zip(registers, before, strict=True):
                for added in set(register) - kept:
                    register.forget(added)
            return Plugin(name, source, version, misfit, error=reason)
        if misfit:
            logger.warning("plugin %s (%s): %s", name, source, misfit)
        if candidate.module != "enginebay":
            self._by_module[candidate.module] = name
        backends, reasoning, tools, routes, wings, _ = (
            tuple(item for item in register if item not in kept)
            for register, kept in zip(registers, before, strict=True)
        )
        return Plugin(
            name, source, version, misfit, backends, reasoning, tools, routes, wings, hooks
        )

    def _hooks_of(self, plugin: object) -> tuple[str, ...]:
        callers = self._manager.get_hookcallers(plugin)
        if not callers:
            raise ValueError(
                "it implements no hook: a function with @hookimpl and the name of a hook"
            )
        specified = [name for name, hook in vars(self._manager.hook).items() if hook.has_spec()]
        for caller in callers:
            near = get_close_matches(caller.name, specified, n=1)
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
        before = set(self.wings)
        hook(register=self.wings)
        for name in set(self.wings) - before:
            wing = self.wings[name]
            if getattr(wing, "name", None) != name:
                raise ValueError(f"the wing {name!r} must have this name as its attribute `name`")
            if wing.hooks:
                self._manager.add_hookspecs(wing.hooks)


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


def discovered(folder: Path | None) -> Iterator[Candidate]:
    """All plugins, in the order in which they register."""
    version = _version("enginebay")
    for package in BUILTIN:
        if is_there(package):
            load = partial(importlib.import_module, package)
            yield Candidate(name_of(package), "built in", version, load, package)
    yield from sorted(_entry_points(), key=attrgetter("name"))
    for path in _files(folder) if folder else ():
        yield Candidate(
            path.stem, str(path), "", partial(_load_file, path), _module_of(path), file=path
        )


def _entry_points() -> Iterator[Candidate]:
    """The plugins of all distributions, and distributions whose entry points cannot be read."""
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        try:
            if ENTRY_POINT_GROUP not in (distribution.read_text("entry_points.txt") or ""):
                continue
            entries = list(distribution.entry_points.select(group=ENTRY_POINT_GROUP))
        except Exception as error:
            name, version = _name_and_version(distribution)
            source = f"entry points of {name}"
            yield Candidate(name, source, version, partial(_fail, error), name, distribution=name)
            continue
        if not entries:
            continue
        name, version = _name_and_version(distribution)
        if name in seen:  # another one of this name comes first in Python's path
            continue
        seen.add(name)
        for entry in entries:
            module = re.split(r"[.:]", entry.value, maxsplit=1)[0].strip()
            source = f"entry point of {name}"
            yield Candidate(entry.name, source, version, entry.load, module, distribution=name)


def _name_and_version(distribution: importlib.metadata.Distribution) -> tuple[str, str]:
    """Return the name of a distribution, or of its folder if its metadata is damaged."""
    name = version = None
    with suppress(Exception):
        said = distribution.metadata
        name, version = (said.get_all(key, [None])[0] for key in ("Name", "Version"))
    folder = Path(str(getattr(distribution, "_path", "a distribution"))).stem
    return name or folder, version or ""


def _fail(error: Exception) -> object:
    raise error


def _misfit(distribution: str, version: str) -> str:
    """What a distribution requires of Enginebay that this version is not; empty if it fits."""
    from packaging.requirements import Requirement

    try:
        for text in importlib.metadata.requires(distribution) or ():
            asked = Requirement(text)
            applies = asked.marker is None or asked.marker.evaluate({"extra": ""})
            fits = asked.specifier.contains(version, prereleases=True)
            if asked.name.lower() == "enginebay" and applies and not fits:
                return f"it requires enginebay{asked.specifier}, and this is {version}"
    except (ImportError, ValueError):  # its metadata is damaged
        pass
    return ""


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob("[!_]*.py")) if folder.is_dir() else []
    except OSError as error:
        logger.warning("the plugins folder %s cannot be read: %s", folder, error.strerror)
        return []


def _module_of(file: Path) -> str:
    return f"enginebay_plugin_{file.stem}"


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
    if not path.is_file():
        raise ImportError("it is a folder, a broken link, or something else than a file")
    spec = importlib.util.spec_from_file_location(_module_of(path), path)
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
