"""Servers that get more than they can do: one whose model sleeps, and one with llama.cpp."""

import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection

import numpy as np

from benchmarks import models
from benchmarks.report import Json
from enginebay import ModelInfo
from enginebay.config.schema import Config
from enginebay.engine.backend import EngineBackend
from enginebay.engine.batching.engine import BatchingEngine
from enginebay.engine.batching.numpy_runner import NumpyRunner, Rows
from enginebay.engine.batching.runner import Chunk, RunnerMemory
from enginebay.engine.batching.step import BatchLimits
from enginebay.plugins import Plugins
from enginebay.server.app import create_app
from enginebay.server.http.sockets import listen
from enginebay.server.http.uvicorn_server import Server

SLOTS = 8
CONTEXT = 512
_VOCABULARY = 1000
_STEP, _PROMPT_TOKEN = 0.010, 0.0002
"""Seconds of a pass of the model that sleeps, and of each token of a prompt in it."""


class Sleeper(NumpyRunner):
    """A model that takes its time and always says the same."""

    memory = RunnerMemory(slots=SLOTS, tokens=SLOTS * CONTEXT)

    def __init__(self) -> None:
        super().__init__(_VOCABULARY, (), lambda token_id: " token")

    def run(self, chunks: Sequence[Chunk]) -> Rows:
        prompts = sum(len(chunk.token_ids) for chunk in chunks if len(chunk.token_ids) > 1)
        time.sleep(_STEP + _PROMPT_TOKEN * prompts)
        return np.zeros((sum(chunk.logits for chunk in chunks), _VOCABULARY), np.float32)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """There is nothing to copy."""

    def cut(self, slot: int, tokens: int) -> None:
        """There is nothing to cut."""

    def clear(self) -> None:
        """There is nothing to clear."""


class Words:
    """A tokenizer for which every token is a word."""

    special_token_ids: frozenset[int] = frozenset()

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Different words may be the same token."""
        return [hash(word) % _VOCABULARY for word in text.split()]

    encode_plain = encode

    def decode(self, token_ids: Sequence[int]) -> str:
        """As many words."""
        return " token" * len(token_ids)


def _sleeping() -> BatchingEngine[Rows, object]:
    return BatchingEngine(
        Sleeper(),  # type: ignore[arg-type]
        Words(),
        ModelInfo(context_length=CONTEXT, vocab_size=_VOCABULARY),
        BatchLimits(max_batch_size=SLOTS),
        eos_token_ids=frozenset(),
    )


def model(engine: str, threads: int) -> Json:
    """The entry in the config."""
    if engine == "layer":
        return {"name": "bench", "backend": "sleeping", "path": "."}
    made = models.find("demo", "float32")
    models.ensure_gguf(made)
    options = {"max_batch_size": SLOTS, "context_length": CONTEXT, "threads": threads}
    return {
        "name": "bench",
        "backend": "llamacpp",
        "path": str(made.gguf),
        "isolation": "thread",
        "options": options,
    }


def serve(ready: Connection, *, entry: Json) -> None:
    """Run the real app; its port goes to `ready` once its model is loaded."""
    plugins = Plugins()
    plugins.backends("sleeping", lambda settings: EngineBackend(_sleeping))
    app = create_app(Config.model_validate({"models": [entry]}), plugins)
    listening = listen("127.0.0.1", 0)

    async def started() -> None:
        await app.state.services.models.wait_until_loaded()
        ready.send(listening.getsockname()[1])

    Server(app, "error", started).run([listening])


def server(engine: str, threads: int, **settings: object) -> "partial[None]":
    """What `watched.running` runs."""
    return partial(serve, entry={**model(engine, threads), **settings})
