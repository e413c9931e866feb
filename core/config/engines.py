"""Which models of a config share an engine."""

from collections.abc import Hashable, Iterator, Sequence

from core.config.names import root_of
from core.config.problems import KeyPath
from core.config.schema import ModelConfig

_OF_ENGINE = ("max_running", "max_queue")
"""What is the same for all who share an engine: they wait for it in one queue."""


def engine_key(model: ModelConfig, root: str) -> Hashable:
    """The same for models that are like `root` and need nothing else of the engine."""
    return (root, model.backend, model.path, model.isolation, repr(model.options))


def engine_keys(models: Sequence[ModelConfig]) -> list[Hashable]:
    """The key of each model's engine."""
    likes = {model.name: model.like for model in models}
    return [engine_key(model, root_of(model.name, likes)) for model in models]


def engine_problems(models: Sequence[ModelConfig]) -> Iterator[tuple[KeyPath, str]]:
    """Settings of an engine that two who share it do not have in common."""
    first: dict[Hashable, ModelConfig] = {}
    for index, (model, key) in enumerate(zip(models, engine_keys(models), strict=True)):
        other = first.setdefault(key, model)
        for name in _OF_ENGINE:
            if getattr(model, name) != getattr(other, name):
                message = f"it shares the engine of {other.name!r}; set this there for both"
                yield ("models", index, name), message
