"""The backend `remote`: the model of another OpenAI-compatible server, or of several."""

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from enginebay import Backend, BackendRegister, BackendSettings, hookimpl
from enginebay_remote.options import Options

if TYPE_CHECKING:
    from enginebay_remote.pool import Affinity


def create(settings: BackendSettings, affinity: "Affinity | None" = None) -> Backend:
    """A backend for one entry of `models`.

    `affinity`: what is known of the caches of its servers, if there are several.
    """
    options: Options = settings.options or Options()
    if options.chats:
        from enginebay_remote.chat import ChatBackend

        return ChatBackend(settings, affinity=affinity)
    from enginebay_remote.backend import RemoteBackend

    return RemoteBackend(settings, affinity=affinity)


class Remotes:
    """Makes backends. One that takes the place of another, as after a reload of the config, goes on
    with what that knew of which server has which prompts.
    """

    def __init__(self) -> None:
        self._affinities: WeakValueDictionary[str, Affinity] = WeakValueDictionary()

    def create(self, settings: BackendSettings) -> Backend:
        """A backend for one entry of `models`."""
        from enginebay_remote.pool import new_affinity

        affinity = self._affinities.get(settings.name)
        if affinity is None:
            affinity = self._affinities[settings.name] = new_affinity()
        return create(settings, affinity)


@hookimpl
def register_backends(register: BackendRegister) -> None:
    """Make `backend: remote` valid."""
    register("remote", Remotes().create, Options)
