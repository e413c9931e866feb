"""Who may do what with models and requests, and which models an API key may use."""

from collections.abc import Mapping
from typing import Literal

from enginebay.config.keys import Key
from enginebay.contract.errors import ModelNotFoundError
from enginebay.models.index import FoundModel
from enginebay.models.loading.entry import ModelEntry
from enginebay.models.registry import Models

Action = Literal[
    "use_model",
    "lengthen_stay",
    "shorten_stay",
    "see_request",
    "cancel_request",
    "end_reasoning",
    "load_model",
    "unload_model",
    "change_loras",
    "change_template",
    "change_sampling",
    "see_model_folder",
    "estimate_memory",
    "download_model",
]
"""What a request may do to a model, or to requests for it.

`use_model`: generate, embed, count tokens and so on. A model with `load: request` is loaded for
that, and may take the place of an idle model. `lengthen_stay`, `shorten_stay`: `keep_alive` and
`ttl`, see `Stay`. `load_model`: by a command, also with other settings or in place of another one.
"""

Reach = Literal["all", "own", "none"]
"""`own`: requests with the same key, and the stay of models that no other key uses."""

USERS: Mapping[Action, Reach] = {
    "use_model": "all",
    "lengthen_stay": "all",
    "shorten_stay": "own",
    "see_request": "own",
    "cancel_request": "own",
    "end_reasoning": "own",
    "load_model": "none",
    "unload_model": "none",
    "change_loras": "none",
    "change_template": "none",
    "change_sampling": "none",
    "see_model_folder": "none",
    "estimate_memory": "none",
    "download_model": "none",
}
"""The one list of what users may do, with the models that their key may use."""


def allowed(action: Action, *, is_admin: bool) -> Reach:
    """How far a request may do this. Admins may do everything.

    If nobody needs a key, everybody is an admin.
    """
    return "all" if is_admin else USERS[action]


def may_use(key: Key | None, model: ModelEntry, adapter: str | None = None) -> bool:
    """Whether a model is there for this key; its adapters are with it."""
    names = (adapter or model.name, model.name, *model.config.aliases)
    return key is None or key.may_use(*names)


def usable(key: Key | None, models: Models) -> list[ModelEntry]:
    """The models that are there for this key: configured, or loaded from the models folder."""
    return [model for model in models.all() if may_use(key, model)]


def listed(key: Key | None, models: Models) -> list[ModelEntry]:
    """The same, and what else `Models.look_at_folder` saw."""
    return [model for model in models.listed() if may_use(key, model)]


def permitted(key: Key | None, name: str | None, models: Models) -> FoundModel:
    """The model a request names; without a name the current one, or the first that its key may use.

    `ModelNotFoundError` for an unknown name, and for models that the key may not use.
    """
    user = key.name if key else None
    if key is None or key.models is None:
        return models.look_up(name, user)
    there = listed(key, models)
    if not name and there:
        current = models.current(user)
        return current if may_use(key, current.entry, current.adapter) else FoundModel(there[0])
    if name:
        try:
            found = models.look_up(name, user)
        except ModelNotFoundError:
            pass  # its message names all models
        else:
            if may_use(key, found.entry, found.adapter) or key.may_use(name):
                return found
    available = ", ".join(model.name for model in there) or "none"
    said = f"the model {name!r} does not exist for this key; available: {available}"
    nothing = "there is no model for this key; available: none"
    raise ModelNotFoundError(said if name else nothing, param="model")
