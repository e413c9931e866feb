"""Names and aliases of models, and inheritance by `like`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from enginebay.config.problems import KeyPath, key_text
from enginebay.config.walk import nearest

_OWN = ("name", "aliases")
"""What an entry never inherits."""


def name_problems(
    data: Mapping[Any, Any], named: Callable[[KeyPath], str] = key_text
) -> Iterator[tuple[KeyPath, str]]:
    """Duplicate names, and `like` of unknown models, in a file's data, valid or not.

    A name is taken by `name`, `aliases` and, where these are used, `dummy_model_names`. `named`:
    how a message says where something is.
    """
    models = _models(data)
    taken: dict[str, KeyPath] = {}
    for path, name in (*_names(models), *_aliases(models), *_dummies(data)):
        if name in taken:
            yield path, f"{named(taken[name])} is already {name!r}; choose another name"
        taken.setdefault(name, path)
    by_name = _by_name(models)
    for index, model in enumerate(models):
        like = model.get("like")
        if not isinstance(like, str):
            continue
        if like not in by_name:
            others = [name for name in by_name if name != model.get("name")]
            yield ("models", index, "like"), f"there is no model {like!r}{nearest(like, others)}"
        elif _root(model, by_name) is None:
            yield ("models", index, "like"), "this is circular: the model inherits from itself"


def without_likes(models: Iterable[Any]) -> list[Any]:
    """Models of a file with everything they inherit.

    Mappings (`options`, `sampling`) are merged. Invalid parts are left unchanged.
    """
    models = list(models)
    by_name = _by_name([model for model in models if isinstance(model, dict)])
    return [_joined(model, by_name) if isinstance(model, dict) else model for model in models]


def _joined(model: dict[Any, Any], by_name: Mapping[str, dict[Any, Any]]) -> dict[Any, Any]:
    other = by_name.get(model.get("like") or "")
    if other is None or _root(model, by_name) is None:
        return model
    return merged(
        {key: value for key, value in _joined(other, by_name).items() if key not in _OWN}, model
    )


def merged(under: Mapping[Any, Any], over: Mapping[Any, Any]) -> dict[Any, Any]:
    """The settings of one model, where `over` takes precedence; mappings in them are merged."""
    both = dict(under)
    for key, value in over.items():
        before = both.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            both[key] = {**before, **value}
        elif value is not None:
            both[key] = value
    return both


def root_of(name: str, likes: Mapping[str, str | None]) -> str:
    """The end of the `like` chain of `name`; itself if it inherits from none."""
    while (like := likes.get(name)) in likes and like is not None:
        name = like
    return name


def _root(model: Mapping[Any, Any], by_name: Mapping[str, dict[Any, Any]]) -> str | None:
    """The name of the model at the end of the `like` chain; None if it is circular."""
    seen: list[Any] = []
    here: Mapping[Any, Any] | None = model
    while here is not None and here not in seen:
        seen.append(here)
        here = by_name.get(here.get("like") or "")
    return str(seen[-1].get("name")) if here is None else None


def _models(data: Mapping[Any, Any]) -> list[dict[Any, Any]]:
    """One mapping per entry, empty for entries that are not mappings."""
    models = data.get("models")
    entries = models if isinstance(models, list) else []
    return [model if isinstance(model, dict) else {} for model in entries]


def _by_name(models: Iterable[dict[Any, Any]]) -> dict[str, dict[Any, Any]]:
    named = ((model.get("name"), model) for model in models)
    return {name: model for name, model in named if isinstance(name, str)}


def _names(models: Iterable[dict[Any, Any]]) -> Iterator[tuple[KeyPath, str]]:
    for index, model in enumerate(models):
        if isinstance(name := model.get("name"), str):
            yield ("models", index, "name"), name


def _aliases(models: Iterable[dict[Any, Any]]) -> Iterator[tuple[KeyPath, str]]:
    for index, model in enumerate(models):
        aliases = model.get("aliases")
        for position, alias in enumerate(aliases if isinstance(aliases, list) else ()):
            if isinstance(alias, str):
                yield ("models", index, "aliases", position), alias


def _dummies(data: Mapping[Any, Any]) -> Iterator[tuple[KeyPath, str]]:
    server = data.get("server")
    if not isinstance(server, dict) or not server.get("use_dummy_models"):
        return
    names = server.get("dummy_model_names")
    for position, name in enumerate(names if isinstance(names, list) else ()):
        if isinstance(name, str):
            yield ("server", "dummy_model_names", position), name
