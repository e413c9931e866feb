"""A server that runs on a thread of a command, beside what it does in the terminal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from enginebay.cli.console import fail, stderr
from enginebay.cli.settings import load_plugins, model_at, require_valid

if TYPE_CHECKING:
    import socket

    from enginebay.config.schema import Config
    from enginebay.models.loading.entry import ModelEntry
    from enginebay.plugins import Plugins
    from enginebay.server.access.key_store import KeyStore


@contextmanager
def private_server(path: Path, backend: str | None) -> Iterator[str]:
    """A server with one model on a free port of this machine, until the block ends; its URL."""
    from enginebay.config.schema import Config
    from enginebay.server.http.sockets import listen, url_of
    from enginebay.server.http.uvicorn_server import set_up_logging

    set_up_logging("error", stderr())
    plugins = load_plugins(Config())
    config = Config(models=[model_at(path, backend, plugins)])
    require_valid(config, plugins)
    host = "127.0.0.1"
    with (
        listen(host, 0) as listening,
        serving(config, plugins, listening, path),
    ):
        yield url_of(host, listening.getsockname()[1])


@contextmanager
def serving(
    config: Config,
    plugins: Plugins,
    listening: socket.socket,
    shown: object,
    keys: KeyStore | None = None,
) -> Iterator[ModelEntry]:
    """A server with the one model of a config, which is loaded, until the block ends; the model.

    Shows its loading, and exits if that fails; `shown` is where the user knows the model to be.
    """
    from enginebay.cli.loading import Loading
    from enginebay.server.app import create_app
    from enginebay.server.http.uvicorn_server import Server
    from enginebay.server.services import services_of

    [model_config] = config.models
    loading = Loading([model_config.name], stderr())
    app = create_app(config, plugins, keys=keys, report_progress=loading.report)
    loaded = threading.Event()

    async def wait_for_model() -> None:
        await services_of(app).models.wait_until_loaded()
        loaded.set()

    server = Server(app, config.server.log_level, wait_for_model)
    with server.in_thread(listening):
        loading.start()
        try:
            loaded.wait()
        finally:
            loading.stop()
        model = services_of(app).models.all()[0]
        if model.state == "failed":
            fail(f"the model at {shown} cannot be loaded: {model.error}")
        yield model
