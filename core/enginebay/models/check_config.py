"""Config checks that need the plugins: backends, their options, formats, paths."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from enginebay.config.engines import engine_config, engine_keys, engine_problems
from enginebay.config.messages import explain
from enginebay.config.paths import is_special
from enginebay.config.problems import ConfigError, KeyPath, Problem, in_order, key_text
from enginebay.config.schema import Config, ModelConfig, resolved_path
from enginebay.config.walk import Schema, nearest
from enginebay.contract.errors import BackendUnavailableError
from enginebay.contract.registers import BackendEntry
from enginebay.engine.kv_store.seals import read_secret
from enginebay.models.downloads import HubName, hub_names
from enginebay.models.presets import FOLDER, load_preset, preset_files
from enginebay.models.template.template import template_files, template_path
from enginebay.models.template.template_set import USUAL_NAMES
from enginebay.plugins import WINGS, Plugins, name_of

logger = logging.getLogger(__name__)

Message = tuple[KeyPath, str]

_ADDRESS = re.compile(r"[\w.-]+:\d+(/|$)")
"""A host and port, as of a URL without its scheme."""


def check_config(config: Config, plugins: Plugins) -> list[Problem]:
    """Problems that would keep models from loading, found without loading them."""
    models = {model.name: model for model in config.models}
    problems = [
        config.origins.problem(("models", index, *key), message)
        for index, model in enumerate(config.models)
        for key, message in model_problems(model, config.base, plugins)
        if not _is_from(models.get(model.like or ""), model, key)
    ]
    problems += [config.origins.problem(*each) for each in engine_problems(config.models)]
    engines = {
        key
        for key, model in zip(engine_keys(config.models), config.models, strict=True)
        if model.load == "start" and not plugins.backends.run_elsewhere(model.backend)
    }
    room = config.loading.max_loaded_models
    if room is not None and len(engines) > room:
        message = f"{len(engines)} models are loaded at start; set `load: request` for some"
        problems.append(config.origins.problem(("loading", "max_loaded_models"), message))
    problems += _kv_store_problems(config)
    problems += _api_problems(config, plugins)
    problems += _wing_problems(config, plugins)
    return in_order(problems) + _preset_problems(config)


def _api_problems(config: Config, plugins: Plugins) -> list[Problem]:
    """Names in `server.apis` that no wing has, installed or not."""
    known = [name for name, wing in plugins.wings.items() if wing.is_api]
    return [
        config.origins.problem(("server", "apis", index), f"no API {name!r}{nearest(name, known)}")
        for index, name in enumerate(config.server.apis or ())
        if name not in known and name not in map(name_of, WINGS)
    ]


def _wing_problems(config: Config, plugins: Plugins) -> list[Problem]:
    problems: list[Problem] = []
    for wing in plugins.wings.values():
        try:
            problems += [config.origins.problem(*each) for each in wing.problems(config)]
        except Exception:
            logger.exception("wing %s: problems() failed; its settings are not checked", wing.name)
    return problems


def _kv_store_problems(config: Config) -> list[Problem]:
    asked = config.loading.kv_store(config.base)
    if asked is None or asked.folder is None:
        return []
    folder = Path(asked.folder)
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if there.exists() and not there.is_dir():
        message = f"{there} is no folder; name one, or a path at which there is nothing yet"
        return [config.origins.problem(("loading", "cache_dir"), message)]
    try:
        if asked.key_file:
            read_secret(Path(asked.key_file))
    except BackendUnavailableError as error:
        return [config.origins.problem(("loading", "cache_key_file"), error.message)]
    return []


def without_saved_kv(config: Config, plugins: Plugins) -> list[str]:
    """The models whose backends save no sequences, if that is asked for."""
    if config.loading.kv_store(config.base) is None:
        return []
    entries = (
        (model.name, plugins.backends.get(engine_config(model, plugins.backends).backend))
        for model in config.models
    )
    return [name for name, entry in entries if entry and not entry.saves_kv]


def _preset_problems(config: Config) -> list[Problem]:
    """The problems of the preset files, each file once."""
    known = preset_files(config.base)
    problems: list[Problem] = []
    for name in dict.fromkeys(model.sampling_preset for model in config.models):
        try:
            if name in known:
                load_preset(name, config.base)
        except ConfigError as error:
            problems += error.problems
    return problems


def _is_from(other: ModelConfig | None, model: ModelConfig, key: KeyPath) -> bool:
    """Whether a model inherits the value at `key`, so that the problem is reported there."""
    return other is not None and getattr(other, str(key[0])) == getattr(model, str(key[0]))


def validated_options(model: ModelConfig, entry: BackendEntry) -> Any:
    """A model's `options` as the class its backend registered; unchanged if it has none.

    Raises `BackendUnavailableError` when the backend does not accept them.
    """
    options, problems = _validate(model.options, entry)
    if problems:
        text = "; ".join(f"{key_text(key)}: {message}" for key, message in problems)
        raise BackendUnavailableError(text)
    return options


def settings_of_prompts(model: ModelConfig, *, renders: bool) -> list[str]:
    """The settings of a model that control how prompts are rendered and answers are parsed.

    `renders`: variables of the chat template are passed on, so they do not count.
    """
    settings = {
        "chat_template": model.chat_template is not None,
        "continue_assistant": model.continue_assistant,
        "reasoning": model.reasoning not in ("auto", "none"),
        "tools": model.tools not in ("auto", "none"),
        "template_vars": bool(model.template_vars) and not renders,
        "force_template_vars": bool(model.force_template_vars) and not renders,
    }
    return [name for name, is_set in settings.items() if is_set]


def options_schema(entry: BackendEntry) -> Schema:
    """The JSON schema of a backend's `options`; empty if it has none."""
    if entry.options is None:
        return {}
    try:
        return TypeAdapter[Any](entry.options).json_schema()
    except PydanticUserError:  # of a type that no JSON schema can express
        return {}


def option_names(entry: BackendEntry) -> list[str]:
    """The known keys of a backend's `options`."""
    return list(options_schema(entry).get("properties", {}))


def _validate(options: dict[str, Any], entry: BackendEntry) -> tuple[Any, list[Message]]:
    if entry.options is None:
        return options, []
    try:
        return TypeAdapter[Any](entry.options).validate_python(options), []
    except ValidationError as error:
        found = explain(error, options, options_schema(entry))
        return None, [(("options", *key), message) for key, message in found]
    except Exception as error:  # a plugin's own code
        reason = f"{type(error).__name__}: {error}"
        return None, [(("options",), f"the plugin of this backend cannot read them ({reason})")]


def model_problems(model: ModelConfig, base: Path, plugins: Plugins) -> Iterator[Message]:
    """Where in one model's entry something keeps it from loading, and what; not its preset file."""
    if entry := plugins.backends.get(model.backend):
        yield from _validate(model.options, entry)[1]
    else:
        yield ("backend",), _unknown_backend(model.backend, plugins)
    elsewhere = plugins.backends.run_elsewhere(model.backend)
    engine = engine_config(model, plugins.backends)
    if elsewhere and (entry := plugins.backends.get(engine.backend)):  # which may be there only
        found = _validate(engine.options, entry)[1]
        yield from ((("options", *key), message) for key, message in found)
    for where, hub_name in hub_names(engine):
        try:
            HubName.parse(hub_name)
        except ValueError as error:
            inside = elsewhere and where[0] == "options"
            yield (("options", *where) if inside else where), str(error)
    path = resolved_path(model.path, base)
    if not path:
        if entry and entry.needs_path:
            yield ("path",), f"is missing; set it to the file or folder of the model {model.name!r}"
    elif elsewhere:  # then it is looked for where the engine is
        pass
    elif "://" not in path and not Path(path).exists():
        hint = "; a URL begins with http:// or https://" if _ADDRESS.match(model.path) else ""
        if not path.isprintable():
            path, hint = repr(path), "; in single quotes YAML leaves every \\ as it is"
        yield ("path",), f"there is no file or folder {path}{hint}"
    elif is_special(Path(path)):
        yield ("path",), f"{path} is a pipe, a device or a socket, not a file or folder"
    template = model.chat_template
    if template and template not in USUAL_NAMES and template_path(template, base) is None:
        there = sorted(template_files(base))
        message = f"there is no file {base / template}, and none of that name in templates/"
        yield ("chat_template",), message + nearest(template, there)
    presets = list(preset_files(base))
    if model.sampling_preset and model.sampling_preset not in presets:
        message = f"there is no file {base / FOLDER / model.sampling_preset}.yml"
        yield ("sampling_preset",), message + nearest(model.sampling_preset, presets)
    for key, name, known in (
        ("reasoning", model.reasoning, plugins.reasoning),
        ("tools", model.tools, plugins.tools),
    ):
        names = ["auto", "none", *known]
        if name not in names:
            yield (key,), f"unknown format {name!r}{nearest(name, names)}"


def _unknown_backend(name: str, plugins: Plugins) -> str:
    text = f"no backend {name!r} is installed; if a plugin provides it, install that plugin"
    named = [plugin for plugin in plugins.found if plugin.name == name]
    for plugin in named or plugins.found:
        if plugin.blocked:
            text += f"; the plugin {plugin.name!r} is blocked in the config"
        elif plugin.error:
            text += f"; the plugin {plugin.name!r} could not be loaded ({plugin.error})"
    return text + nearest(name, list(plugins.backends))
