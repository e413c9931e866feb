"""Models that are not configured: at a path, or in a folder by name."""

import logging
import re
import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from enginebay.config.model_settings import FILE, Settings, placed, with_settings
from enginebay.config.paths import is_special, state_of
from enginebay.config.problems import ConfigError, Problem
from enginebay.config.schema import Config, ModelConfig, resolved_path
from enginebay.contract.errors import InvalidRequestError, ModelNotFoundError
from enginebay.models.check_config import model_problems
from enginebay.models.downloads.folder import is_unfinished, state_folder
from enginebay.models.template.template import TEMPLATES_FOLDER, template_path
from enginebay.models.template.template_set import USUAL_NAMES
from enginebay.plugins import Plugins

logger = logging.getLogger(__name__)

_DEEPEST = 4
"""Folders below the models folder in which models are looked for: `owner/repository/Q4_K_M`."""

_SETTLED = 2_000_000_000
"""Nanoseconds after which a change of a folder surely has another time than the one before."""

_ENDING = re.compile(r"(-00001-of-\d{5})?\.gguf$", re.IGNORECASE)
"""What a model's other name leaves out of the name of its file."""


def model_at(path: Path, plugins: Plugins, backend: str | None = None) -> ModelConfig:
    """The model at a path, for this backend or the first one that recognises it.

    Blocks briefly. `ConfigError` if nothing is there, or no backend recognises it.
    """
    backend = backend or _first_backend(path, plugins)
    whole = path.absolute()
    return ModelConfig(name=whole.name or "model", backend=backend, path=str(whole))


def _first_backend(path: Path, plugins: Plugins) -> str:
    here = (name for name, entry in plugins.backends.items() if not entry.elsewhere)
    installed = ", ".join(here) or "none"
    if not path.exists():
        raise ConfigError([Problem("", "", f"there is no file or folder {path}")])
    if is_special(path):
        problem = f"{path} is a pipe, a device or a socket, not a file or folder"
        raise ConfigError([Problem("", "", problem)])
    found = _backend_for(path, plugins)
    if found is None:
        problem = f"no backend recognises {path} as a model; name one of {installed} as its backend"
        raise ConfigError([Problem("", "", problem)])
    return found


def _installed(plugins: Plugins) -> str:
    """The names of the backends that load files of this machine."""
    here = [name for name, entry in plugins.backends.items() if not entry.elsewhere]
    return ", ".join(here) or "none"


def _backend_for(path: Path, plugins: Plugins) -> str | None:
    for name, entry in plugins.backends.items():
        try:
            if entry.serves and entry.serves(path):
                return name
        except Exception:  # a plugin's own code
            logger.exception("the backend %s failed to check whether it serves %s", name, path)
    return None


@dataclass(frozen=True, slots=True)
class FolderModel:
    """A model of the folder. `aliases`: its other names; `settings`: its files of settings."""

    name: str
    path: Path
    backend: str
    aliases: tuple[str, ...]
    settings: tuple[Path, ...]


@dataclass(slots=True)
class _Scan:
    """What was found, and the state of every file and folder that this depends on."""

    models: dict[str, FolderModel] = field(default_factory=dict)
    seen: dict[Path, tuple[int, int, int] | None] = field(default_factory=dict)
    at: int = field(default_factory=time.time_ns)

    def look_at(self, path: Path) -> bool:
        """Remember its state; whether it is there."""
        self.seen[path] = state_of(path)
        return self.seen[path] is not None

    def is_current(self) -> bool:
        """Whether nothing has changed since, nor may have without a sign of it."""
        newest = max((state[0] for state in self.seen.values() if state), default=0)
        return self.at - newest > _SETTLED and all(
            state_of(path) == state for path, state in self.seen.items()
        )


def folder_of(config: Config, plugins: Plugins) -> "ModelFolder":
    """The models folder of a config."""
    path = Path(resolved_path(config.server.model_dir, config.base))
    return ModelFolder(path, plugins, config.base)


class ModelFolder:
    """The models of a folder, by name; nothing outside it can be named.

    A model is a file or folder that a backend recognises, at any depth: `owner/repository` is one,
    too, and of a folder with several model files each file is one. The methods read names and small
    files, so they block briefly; they may be called on any thread.
    """

    def __init__(self, folder: Path, plugins: Plugins, base: Path | None = None) -> None:
        """`base`: the folder of the config."""
        self.root = folder
        self._plugins = plugins
        self._base = base or folder
        self._scan: _Scan | None = None

    def models(self) -> Mapping[str, FolderModel]:
        """Its models by name. The folder is only read again if something in it has changed."""
        scan = self._scan
        if scan is None or not scan.is_current():
            scan = _Scan()
            if scan.look_at(self.root):
                for model in self._found(scan, self.root, "", ()):
                    scan.models[model.name] = model
            self._scan = scan
        return scan.models

    def names(self) -> list[str]:
        """The names of its models."""
        return list(self.models())

    def path(self, name: str) -> Path:
        """Where the entry of that name is. Raises `ModelNotFoundError`."""
        if model := self.models().get(name):
            return model.path
        for path in _entries(self.root):
            if path.name == name:
                return path
        known = ", ".join(self.names()) or "no model"
        raise ModelNotFoundError(
            f"the model {name!r} does not exist; {self.root} has {known}", param="name"
        )

    def config(self, name: str, backend: str | None = None) -> ModelConfig:
        """A config for that entry, with this backend or the one that recognises it.

        Raises `ModelNotFoundError`, and `InvalidRequestError` if no backend recognises it, or its
        settings cannot be used.
        """
        path = self.path(name)
        model = self.models().get(name)
        if model is None and backend is None:
            installed = _installed(self._plugins)
            raise InvalidRequestError(
                f"no backend recognises {path}; name one as `backend`, installed: {installed}",
                param="backend",
            )
        settings = self.settled(model or FolderModel(name, path, "", (), ()), {"load": "command"})
        if settings.wrong:
            raise InvalidRequestError("\n".join(map(str, settings.wrong)), param="name")
        for problem in settings.refused:
            logger.warning("%s", problem)
        config = settings.config
        return config.model_copy(update={"backend": backend}) if backend else config

    def settled(self, model: FolderModel, defaults: Mapping[str, object]) -> Settings:
        """Its config, of these defaults and its settings files, and what is wrong with those."""
        backend = model.backend or "none"
        own = {"name": model.name, "backend": backend, "path": str(model.path)}
        found = {**defaults, **own}
        templates = self._templates() if model.settings else {}
        settings = with_settings(found, model.aliases, model.settings, templates)
        if not settings.files or settings.wrong:
            return settings
        problems = model_problems(settings.config, self._base, self._plugins)
        if wrong := [placed(settings.files, *problem) for problem in problems]:
            plain = with_settings(found, model.aliases, (), {})
            return replace(settings, config=plain.config, wrong=wrong)
        return settings

    def _templates(self) -> dict[str, str]:
        """The chat templates that settings may name: shipped ones, and those of the model itself.

        None is a template of the user: settings may be a stranger's.
        """
        own = (name for name in USUAL_NAMES if template_path(name, self._base) is None)
        shipped = {path.stem: str(path) for path in TEMPLATES_FOLDER.glob("*.jinja")}
        return {**{name: name for name in own}, **shipped}

    def problems(self) -> tuple[list[Problem], list[Problem]]:
        """What is wrong in settings of its models, and what they may not set; each problem once."""
        wrong: dict[Problem, None] = {}
        refused: dict[Problem, None] = {}
        for model in self.models().values():
            settings = self.settled(model, {})
            wrong |= dict.fromkeys(settings.wrong)
            refused |= dict.fromkeys(settings.refused)
        return list(wrong), list(refused)

    def _found(
        self, scan: _Scan, folder: Path, prefix: str, above: tuple[Path, ...]
    ) -> Iterator[FolderModel]:
        """The models in a folder, in the order of their names. `above`: settings for all of it."""
        entries = _entries(folder)
        there = set(entries)
        settings = (*above, *_existing(scan, there, folder / FILE))
        for path in entries:
            name = prefix + path.name
            if path.is_file():
                if backend := _backend_for(path, self._plugins):
                    own = _existing(scan, there, _own_settings(path))
                    yield _model(name, path, backend, (*settings, *own))
            elif path.is_dir():
                scan.look_at(path)
                if not _leads_back(path) and not _is_unfinished(scan, path):
                    yield from self._found_below(scan, path, name, settings)
            else:
                scan.look_at(path)  # a link that leads nowhere may lead somewhere later

    def _found_below(
        self, scan: _Scan, folder: Path, name: str, above: tuple[Path, ...]
    ) -> Iterator[FolderModel]:
        """A folder as one model, or all the models in it."""
        backend = _backend_for(folder, self._plugins)
        entries = _entries(folder)
        files = [
            path
            for path in entries
            if path.is_file() and backend and _backend_for(path, self._plugins) == backend
        ]
        if backend and len(files) < 2:
            own = (folder / FILE, *map(_own_settings, files))
            settings = (*above, *_existing(scan, set(entries), *own))
            yield _model(name, folder, backend, settings)
        elif name.count("/") + 1 < _DEEPEST:
            yield from self._found(scan, folder, f"{name}/", above)


def _model(name: str, path: Path, backend: str, settings: tuple[Path, ...]) -> FolderModel:
    short = _ENDING.sub("", name)
    return FolderModel(name, path, backend, (short,) if short != name else (), settings)


def _own_settings(file: Path) -> Path:
    """Where the settings of a model are that is a file."""
    short = _ENDING.sub("", file.name)
    return file.with_name(f"{short}.yml") if short != file.name else file.with_suffix(".yml")


def _entries(folder: Path) -> list[Path]:
    """Its entries, except hidden or unprintable ones: paths are never built from names."""
    try:
        found = sorted(folder.iterdir())
    except OSError as error:
        if folder.is_dir():
            logger.warning("%s cannot be read: %s", folder, error.strerror)
        return []
    return [path for path in found if path.name[:1] not in "._" and path.name.isprintable()]


def _leads_back(folder: Path) -> bool:
    """Whether it is a link to one of the folders that it lies in."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def _existing(scan: _Scan, there: Set[Path], *wanted: Path) -> list[Path]:
    """The settings files among these."""
    return [path for path in wanted if path in there and scan.look_at(path)]


def _is_unfinished(scan: _Scan, folder: Path) -> bool:
    return scan.look_at(state_folder(folder)) and is_unfinished(folder)
