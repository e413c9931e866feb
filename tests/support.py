"""A real server on a real port, and plugins that exist for one test."""

import asyncio
import hashlib
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI

from demo.language_model import extract
from enginebay import Backend, Delta, Engine, EngineBackend, GenerationRequest, ModelInfo
from enginebay.config.schema import Config
from enginebay.config.wing_sections import whole_config
from enginebay.contract.backend_settings import BackendSettings
from enginebay.plugins import Plugins
from enginebay.server.access.key_store import KeyStore
from enginebay.server.app import create_app
from enginebay.server.http import uvicorn_server
from enginebay.testing import ScriptedEngine

REPOSITORY = Path(__file__).parents[1]
SEEING_MODEL = REPOSITORY / "demo" / "model"
"""The demo model as it is shipped: LLaVA, for text and pictures."""


def _language_model() -> Path:
    """Written again only when the demo model has changed."""
    digest = hashlib.sha256()
    for file in sorted(SEEING_MODEL.iterdir()):
        digest.update(file.read_bytes())
    cache = REPOSITORY / "tests" / ".cache"
    folder = cache / f"language-model-{digest.hexdigest()[:16]}"
    if not folder.exists():
        cache.mkdir(exist_ok=True)
        with suppress(FileExistsError):  # another process was faster
            extract(SEEING_MODEL, folder)
    return folder


DEMO_MODEL = _language_model()
"""Its language model alone, which is a Llama like many, for all that is not about pictures."""
# Reading the certificates of all authorities, for each client, takes longer than many a test.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


OTHER: dict[str, Any] = {"http": "httptools"}
"""What another server speaks HTTP with."""


class _Server(uvicorn.Server):
    """One that ends at once when it is told to, where uvicorn's looks at the clock."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._told = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self.up.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._told.wait()

    def end(self) -> None:
        """From any thread."""
        self.should_exit = True
        if self.loop:
            self.loop.call_soon_threadsafe(self._told.set)

    async def shutdown(self, sockets: Any = None) -> None:
        for _ in range(20):  # clients have hung up as a rule, which is heard of within a few steps
            if not (self.server_state.connections or self.server_state.tasks):
                for server in self.servers:
                    server.close()
                return await self.lifespan.shutdown()
            await asyncio.sleep(0)
        await super().shutdown(sockets)


@dataclass
class Server:
    """A running server and clients for it."""

    url: str
    app: Any
    loop: asyncio.AbstractEventLoop
    openai: OpenAI
    http: httpx2.Client

    def async_openai(self) -> AsyncOpenAI:
        """To be closed by whoever asks for it."""
        http = DefaultAsyncHttpxClient(verify=NO_TLS)
        return AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, http_client=http
        )

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine on the server's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(120)

    def settle(self) -> None:
        """Wait until nothing is left to do for requests that have been answered."""
        self.run(_until_answered())


async def _until_answered() -> None:
    tasks = asyncio.all_tasks()
    answering = [task for task in tasks if task.get_coro().__name__ == "run_asgi"]  # of uvicorn
    if answering:
        await asyncio.wait(answering, timeout=60)


@contextmanager
def serve(
    config: Config,
    plugins: Plugins,
    *,
    wait: bool = True,
    keys: KeyStore | None = None,
    own_protocol: bool = True,
) -> Iterator[Server]:
    """Run the app in a thread of its own until the block ends, as `enginebay serve` does.

    Where neither the config nor `keys` say anything of keys, nobody needs one, admins neither.
    Without `own_protocol` HTTP is spoken as by any other server.
    """
    if config.server.auth == "auto" and not config.server.api_keys and keys is None:
        without_keys = config.server.model_copy(update={"auth": "none"})
        config = config.model_copy(update={"server": without_keys})
    app = create_app(config, plugins, keys=keys)
    own = uvicorn_server.protocols(config.server, app.state.services.paths)
    config_of_uvicorn = uvicorn.Config(
        app,
        **(own if own_protocol else OTHER),
        port=0,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
    )
    server = _Server(config_of_uvicorn)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert server.up.wait(60)
        port = server.servers[0].sockets[0].getsockname()[1]
        assert server.loop
        url = f"http://127.0.0.1:{port}"
        with (
            DefaultHttpxClient(verify=NO_TLS) as transport,
            OpenAI(
                base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=transport
            ) as client,
            httpx2.Client(base_url=url, timeout=60, verify=NO_TLS) as http,
        ):
            running = Server(url, app, server.loop, client, http)
            if wait:
                running.run(app.state.services.models.wait_until_loaded())
            yield running
    finally:
        server.end()
        thread.join()


def plugins_with(**backends: Callable[[BackendSettings], Backend]) -> Plugins:
    """The built-in plugins, and these backends beside them."""
    plugins = Plugins()
    for name, create in backends.items():
        plugins.backends(name, create)
    return plugins


def engine_backend(create: Callable[[], Engine]) -> Callable[[BackendSettings], Backend]:
    """A `create` for a register: this engine on a thread of its own."""
    return lambda settings: EngineBackend(create)


def scripted(
    script: Callable[[str, int], Sequence[str]] | Sequence[str], **kwargs: Any
) -> Callable[[BackendSettings], Backend]:
    """A `create` for a register: an engine that says this."""
    return engine_backend(lambda: ScriptedEngine(script, **kwargs))


class InlineBackend(Backend):
    """A scripted engine stepped on the event loop: a delta a piece, none ever merged."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine

    async def start(self) -> ModelInfo:
        return self._engine.info

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        self._engine.add_request(request)
        unfinished = request.n
        while unfinished:
            for _, delta in self._engine.step():
                assert isinstance(delta, Delta)
                unfinished -= delta.finish_reason is not None
                yield delta
            await asyncio.sleep(0)  # an engine without an end leaves others their turn

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._engine.tokenize(text, add_special_tokens=add_special_tokens)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return self._engine.detokenize(token_ids)

    async def close(self) -> None:
        pass


def scripted_config(**model: Any) -> Config:
    """One model, `scripted`, on the backend `scripted`."""
    server = model.pop("server", {})
    entry = {"name": "scripted", "backend": "scripted", "path": ".", **model}
    return whole_config().model_validate({"models": [entry], "server": server})


@contextmanager
def served_on(listening: socket.socket, app: FastAPI) -> Iterator[None]:
    """Serve it there as `enginebay serve` does, until the block ends; its models are loaded."""
    loaded = threading.Event()

    async def started() -> None:
        await app.state.services.models.wait_until_loaded()
        loaded.set()

    with uvicorn_server.Server(app, "warning", started).in_thread(listening):
        assert loaded.wait(60)
        yield
