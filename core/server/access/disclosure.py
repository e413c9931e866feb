"""What a request may see of why a model failed."""

from fastapi import Request

from core.contract.errors import BackendUnavailableError, ModelFailedError, ServingError
from core.models.loading.entry import ModelEntry
from core.models.loading.state import ShownState
from core.server.access.auth import sees_inside

NOT_LOADED = "could not be loaded; the server's log says why"


def shown_to(http: Request, model: ModelEntry) -> tuple[ShownState, str | None]:
    """The state of a model and its error; strangers do not see why it failed."""
    state, error = model.shown
    if state == "failed" and not sees_inside(http):
        error = f"it {NOT_LOADED}"
    return state, error


def visible_error(http: Request, error: ServingError) -> ServingError:
    """An error as the sender of the request may see it."""
    if isinstance(error, ModelFailedError) and not sees_inside(http):
        return BackendUnavailableError(f"the model {NOT_LOADED}", retry_after=error.retry_after)
    return error
