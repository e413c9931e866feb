"""A server of real models, which take long to load on a busy machine."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from tests.support import Server, serve

PATIENCE = 600
"""Seconds after which a model that is not loaded never will be."""


@contextmanager
def loaded(config: Config) -> Iterator[Server]:
    """A server whose models are loaded."""
    with serve(config, Plugins(), wait=False) as server:
        loading = server.app.state.services.models.wait_until_loaded()
        asyncio.run_coroutine_threadsafe(loading, server.loop).result(PATIENCE)
        yield server
