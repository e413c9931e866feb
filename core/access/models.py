"""Which models the key of a request may use."""

from core.access.keys import Key
from core.errors import ModelNotFoundError
from core.models import LoadedModel, Models


def may_use(key: Key | None, model: LoadedModel) -> bool:
    """Whether a model is there for this key; adapters are, with their model."""
    return key is None or key.may_use(model.name, model.config.name, *model.config.aliases)


def permitted_name(key: Key | None, name: str | None, models: Models) -> str | None:
    """The name under which a request gets its model; without one, None for the usual one if its
    key may use that, else the first that it may.

    `ModelNotFoundError` for what is no model; those that it may not use are said not to be there.
    """
    if key is None or key.models is None:
        if name:
            models.find(name)
        return name
    usable = [model.name for model in models.all() if may_use(key, model)]
    if not name and usable:
        return None if may_use(key, models.default) else usable[0]
    if name:
        try:
            found = models.find(name)
        except ModelNotFoundError:
            pass  # its message names all models
        else:
            if may_use(key, found) or key.may_use(name):
                return name
    raise ModelNotFoundError(
        f"the model {name!r} does not exist for this key; available: {', '.join(usable) or 'none'}",
        param="model",
    )
