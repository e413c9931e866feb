"""The backend `remote`: the model of another OpenAI-compatible server."""

from enginebay import Backend, BackendRegister, BackendSettings, hookimpl
from enginebay_remote.options import Options


def create(settings: BackendSettings) -> Backend:
    """A backend for one entry of `models`."""
    options: Options = settings.options or Options()
    if options.chats:
        from enginebay_remote.chat import ChatBackend

        return ChatBackend(settings)
    from enginebay_remote.backend import RemoteBackend

    return RemoteBackend(settings)


@hookimpl
def register_backends(register: BackendRegister) -> None:
    """Make `backend: remote` valid."""
    register("remote", create, Options)
