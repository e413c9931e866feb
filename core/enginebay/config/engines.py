"""Which models of a config share an engine."""

from collections.abc import Hashable, Iterator, Sequence

from enginebay.config.names import root_of
from enginebay.config.problems import KeyPath
from enginebay.config.schema import ModelConfig
from enginebay.contract.registers import BackendRegister

_OF_ENGINE = ("max_running", "max_queue", "queue_timeout")
"""Settings that must be equal for models that share an engine and its queue."""


def engine_key(model: ModelConfig, root: str) -> Hashable:
    """Equal for models that inherit from `root` and can share its engine."""
    return (root, model.backend, model.path, model.isolation, repr(model.options))


def engine_config(model: ModelConfig, backends: BackendRegister) -> ModelConfig:
    """The model as its engine has it, wherever that runs: see `BackendEntry.elsewhere`."""
    if not backends.run_elsewhere(model.backend):
        return model
    backend, options = model.options.get("engine", ""), model.options.get("options")
    return model.model_copy(
        update={"backend": str(backend), "options": options if isinstance(options, dict) else {}}
    )


def with_engine_config(
    model: ModelConfig, changed: ModelConfig, backends: BackendRegister
) -> ModelConfig:
    """The model whose `engine_config` is `changed`, where the engines of `model` run."""
    if not backends.run_elsewhere(model.backend):
        return changed
    options = {**model.options, "engine": changed.backend, "options": changed.options}
    return changed.model_copy(update={"backend": model.backend, "options": options})


def engine_keys(models: Sequence[ModelConfig]) -> list[Hashable]:
    """The key of each model's engine."""
    likes = {model.name: model.like for model in models}
    return [engine_key(model, root_of(model.name, likes)) for model in models]


def engine_models(models: Sequence[ModelConfig]) -> dict[Hashable, list[ModelConfig]]:
    """The models of each engine, in their order. The engine is named after the first one."""
    sharing: dict[Hashable, list[ModelConfig]] = {}
    for model, key in zip(models, engine_keys(models), strict=True):
        sharing.setdefault(key, []).append(model)
    return sharing


def engine_problems(models: Sequence[ModelConfig]) -> Iterator[tuple[KeyPath, str]]:
    """Conflicting engine settings of models that share an engine."""
    first: dict[Hashable, ModelConfig] = {}
    for index, (model, key) in enumerate(zip(models, engine_keys(models), strict=True)):
        other = first.setdefault(key, model)
        for name in _OF_ENGINE:
            if getattr(model, name) != getattr(other, name):
                message = f"it shares the engine of {other.name!r}; set this there for both"
                yield ("models", index, name), message
