"""Memory that runs out fails one request, or one load, and says what to lower (GPU-3)."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from enginebay import Chunk, Engine, OutOfMemoryError
from enginebay.config.schema import Config
from enginebay.engine.failures import ran_out_of_memory
from enginebay.testing import ScriptedEngine
from enginebay_llamacpp import context
from tests.backends.gguf_models import write_llama
from tests.backends.llamacpp import load as load_gguf
from tests.backends.tiny import load as load_hf
from tests.backends.tiny import make_model
from tests.run import Run, request
from tests.support import engine_backend, plugins_with, serve

HEAVY = 13
CHAT = "/v1/chat/completions"


def run_with_a_heavy_one(engine: Any) -> None:
    """One request takes too much; those beside it and after it are answered."""
    run = Run(engine)
    run.add(request([5, 6, 7], id="before", max_tokens=12))
    run.steps(2)
    run.add(request([5, HEAVY, 7], id="heavy", max_tokens=12))
    run.add(request([8, 9], id="beside", max_tokens=12))
    run.finish()
    run.add(request([5, 6, 7], id="after", max_tokens=12))
    run.finish()
    assert set(run.errors) == {"heavy"}
    error = run.errors["heavy"]
    assert isinstance(error, OutOfMemoryError)
    assert (error.status, error.code) == (503, "out_of_memory")
    assert "lower max_batch_size" in error.message
    for id in ("before", "beside", "after"):
        assert run.deltas[id, 0]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
    ids=["cuda", "python", "torch-cpu"],
)
@pytest.mark.parametrize("batching", ["packed", "padded"])
def test_hf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, batching: str
) -> None:
    engine = load_hf(make_model(tmp_path, "llama"), batching=batching)
    run = engine._runner.run

    def limited(chunks: Sequence[Chunk]) -> torch.Tensor:
        if any(HEAVY in chunk.token_ids[:2] and chunk.start == 0 for chunk in chunks):
            raise error
        return run(chunks)

    monkeypatch.setattr(engine._runner, "run", limited)
    run_with_a_heavy_one(engine)


def test_llamacpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load_gguf(write_llama(tmp_path / "model.gguf"))
    decode: Callable[..., int] = context.llama.llama_decode

    def limited(pointer: Any, batch: Any) -> int:
        prompt = [batch.token[i] for i in range(batch.n_tokens)]
        return -2 if HEAVY in prompt and len(prompt) > 1 else decode(pointer, batch)

    monkeypatch.setattr(context.llama, "llama_decode", limited)
    run_with_a_heavy_one(engine)


def script(prompt: str, index: int) -> Iterable[str]:
    if "heavy" in prompt:
        raise MemoryError("no 20 GiB are left")
    yield from "fine"


@pytest.mark.parametrize("stream", [False, True])
def test_over_http(stream: bool) -> None:
    def asked(text: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}], "stream": stream}

    model = {"name": "m", "backend": "scripted", "path": "."}
    config = Config.model_validate({"models": [model]})
    plugins = plugins_with(scripted=engine_backend(lambda: ScriptedEngine(script)))
    with serve(config, plugins) as server:
        response = server.http.post(CHAT, json=asked("heavy"))
        assert response.status_code == 503
        error = response.json()["error"]
        assert error["code"] == "out_of_memory"
        assert "context_length" in error["message"]
        assert server.http.post(CHAT, json=asked("light")).status_code == 200
        assert server.http.get("/health").json()["state"] == "ok"


@pytest.mark.parametrize("kind", [MemoryError, torch.OutOfMemoryError])
def test_at_load(kind: type[Exception]) -> None:
    def fail() -> Engine:
        raise kind("tried to allocate 20 GiB")

    models = [
        {"name": "small", "backend": "scripted", "path": "."},
        {"name": "large", "backend": "large", "path": ".", "load": "request"},
    ]
    config = Config.model_validate({"models": models})
    plugins = plugins_with(
        scripted=engine_backend(lambda: ScriptedEngine(["ok"])), large=engine_backend(fail)
    )
    with serve(config, plugins) as server:
        messages = [{"role": "user", "content": "x"}]
        response = server.http.post(CHAT, json={"model": "large", "messages": messages})
        assert response.status_code == 503
        assert "there was not enough memory to load it" in response.json()["error"]["message"]
        assert "lower context_length" in response.json()["error"]["message"]
        response = server.http.post(CHAT, json={"model": "small", "messages": messages})
        assert response.status_code == 200


def test_other_errors_are_no_lack_of_memory() -> None:
    assert not ran_out_of_memory(ValueError("token id 9 is not in the vocabulary"))
    assert ran_out_of_memory(RuntimeError("CUDA error: out of memory"))
