"""Servers of one cluster, each in a thread of its own, with models that a test holds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2

from enginebay import Backend, InvalidRequestError
from enginebay.config.keys import Key
from enginebay.config.wing_sections import whole_config
from enginebay.contract.types import Lora
from enginebay.server.access.key_store import KeyStore
from enginebay.testing import ScriptedEngine
from enginebay_cluster.contract import EngineSpec
from tests.fronts.fake_cluster import FakeCluster, ThreadedCluster, cluster_in_thread
from tests.held import Held, Holding
from tests.support import InlineBackend, Server, plugins_with, serve


class HeldElsewhere(Held):
    """A model with engines in the cluster, as one server sees it; `adapters` are loaded there."""

    elsewhere = True

    def __init__(self) -> None:
        super().__init__()
        self.adapters: dict[str, Sequence[Lora]] = {}

    async def load_adapter(self, name: str, loras: Sequence[Lora]) -> None:
        if "broken" in name:
            raise InvalidRequestError("it does not fit the model")
        self.adapters[name] = loras

    async def unload_adapter(self, name: str) -> None:
        self.adapters.pop(name, None)


class OneServer(Holding):
    """One of them, and the adapters that its model has in the cluster."""

    def __init__(self, server: Server, held: HeldElsewhere) -> None:
        super().__init__(server, held)
        self.adapters = held.adapters


class Servers:
    """Servers, their cluster, and whatever a test asks of them."""

    def __init__(
        self, cluster: ThreadedCluster, config: Mapping[str, Any], keys: Sequence[Key]
    ) -> None:
        self.cluster = cluster
        self.all: list[OneServer] = []
        self._config = config
        self._keys = keys
        self._stack = ExitStack()
        self._pool = ThreadPoolExecutor(40)
        self._ends: dict[OneServer, Callable[[], Any]] = {}

    @property
    def fake(self) -> FakeCluster:
        return self.cluster.cluster

    def start(self, *, wait: bool = True) -> OneServer:
        """One more server."""
        port = 8001 + len(self.all)
        given = self._config.get("server", {})
        server = {"port": port, "usage_file": "off", "response_store": "memory", **given}
        config = whole_config().model_validate({**self._config, "server": server})
        plugins = plugins_with(scripted=lambda _: InlineBackend(ScriptedEngine(["ok"])))
        plugins._manager.register(self.fake)
        own = ExitStack()
        keys = KeyStore(Path("no such file"), self._keys) if self._keys else None
        running = own.enter_context(serve(config, plugins, keys=keys, wait=wait))
        [backend] = [
            model.started.backend
            for model in running.app.state.services.models.all()
            if model.started and model.config.backend == "cluster"
        ]
        assert isinstance(backend, HeldElsewhere)
        holding = OneServer(running, backend)
        self.all.append(holding)
        self._ends[holding] = own.close
        return holding

    def end(self, server: OneServer) -> None:
        """It shuts down."""
        if end := self._ends.pop(server, None):
            end()

    def ask(self, server: OneServer, prompt: str, **more: Any) -> "Future[httpx2.Response]":
        """A completion, in a thread of its own."""
        headers = more.pop("headers", None)
        body = {"model": "chat", "prompt": prompt, **more}
        return self._pool.submit(
            server.server.http.post, "/v1/completions", json=body, headers=headers, timeout=60
        )

    def begun(self) -> list[str]:
        """The prompts that the engines have begun with, of all servers."""
        return [prompt for server in self.all for prompt in server.held.begun]

    def running(self) -> list[str]:
        """Those that they run now."""
        return [prompt for server in self.all for prompt in server.held.running]

    def settle(self) -> None:
        """A second goes by for the ledger, on its loop."""
        assert self.fake.clock
        self.fake.clock.advance(1)

    def until(self, condition: Callable[[], object]) -> None:
        """Return when it holds, whichever server it is about."""
        self.cluster.until(condition)

    def close(self) -> None:
        for server in list(self._ends):
            self.end(server)
        self._pool.shutdown()


@contextmanager
def servers(
    count: int = 2,
    *,
    keys: Sequence[Key] = (),
    server: Mapping[str, Any] | None = None,
    **model: Any,
) -> Iterator[Servers]:
    """So many servers with a model `chat` in the cluster, and one of their own, `here`."""
    models = [
        {"name": "chat", "backend": "scripted", "path": "/models/chat", "cluster": {}, **model},
        {"name": "here", "backend": "scripted", "path": "."},
    ]
    cluster = {"share_limits": True}
    written = {"models": models, "cluster": cluster, "server": dict(server or {})}

    def make_backend(engine: EngineSpec) -> Backend:
        return HeldElsewhere()

    with cluster_in_thread(make_backend) as fake:
        made = Servers(fake, written, keys)
        try:
            for _ in range(count):
                made.start()
            yield made
        finally:
            made.close()
