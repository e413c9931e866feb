"""What a request may see of models: which there are, and why one failed."""

from fastapi import Request

from enginebay.contract.errors import BackendUnavailableError, ModelFailedError, ServingError
from enginebay.models.loading.entry import ModelEntry
from enginebay.models.loading.state import ShownState
from enginebay.models.permissions import may_use
from enginebay.server.access.auth import sees_inside
from enginebay.server.http.track import running_request

NOT_LOADED = "could not be loaded; the server's log says why"


def is_named_to(http: Request, model: ModelEntry) -> bool:
    """Whether a request may know of a model: its key may use it, or needs to be none."""
    key = running_request(http).key
    return may_use(key, model) if key else sees_inside(http)


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
