"""The backend `remote`: the model of another OpenAI-compatible server."""

from enginebay import Backend, BackendRegister, BackendSettings, hookimpl
from enginebay_remote.options import Options


def create(settings: BackendSettings) -> Backend:
    """A backend for one entry of `models`."""
    from enginebay_remote.backend import RemoteBackend

    return RemoteBackend(settings)


@hookimpl
def register_backends(register: BackendRegister) -> None:
    """Make `backend: remote` valid."""
    register("remote", create, Options)
