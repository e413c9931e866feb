"""Which servers are compared, and the command that starts each of them."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import environments
from benchmarks.servers import Peer, Settings


def enginebay(backend: str, path: Path, options: dict[str, Any], port: int) -> list[str]:
    """Write the config.yml (JSON is YAML); the command that serves it with this Python."""
    model = {"name": "bench", "backend": backend, "path": str(path), "options": options}
    model["reasoning"] = "none"  # as for the others: a thought is text of the answer
    server = {"port": port, "log_level": "warning"}
    config = environments.FOLDER / f"enginebay-{backend}.yml"
    config.write_text(json.dumps({"server": server, "models": [model]}), encoding="utf-8")
    return [sys.executable, "-m", "enginebay.cli", "serve", "--config", str(config)]


def _enginebay_hf(_: Path, settings: Settings, port: int) -> list[str]:
    options = _common_options(settings) | {"dtype": settings.model.dtype, "device": "cpu"}
    return enginebay("hf", settings.model.folder, options, port)


def _enginebay_llamacpp(_: Path, settings: Settings, port: int) -> list[str]:
    return enginebay("llamacpp", settings.model.gguf, _common_options(settings), port)


def _common_options(settings: Settings) -> dict[str, Any]:
    return {
        "threads": settings.threads,
        "max_batch_size": settings.slots,
        "context_length": settings.context,
    }


def _transformers(python: Path, settings: Settings, port: int) -> list[str]:
    block = 32
    arguments = {
        "--cb-block-size": block,
        "--cb-num-blocks": settings.slots * -(-settings.context // block),
        "--cb-max-batch-tokens": 512,
        "--device": "cpu",
        "--dtype": settings.model.dtype,
        "--host": "127.0.0.1",
        "--port": port,
    }
    program = str(python.with_name("transformers"))
    serve = [program, "serve", str(settings.model.folder), "--continuous-batching"]
    return [*serve, *_flat(arguments)]


def _llama_cpp_python(python: Path, settings: Settings, port: int) -> list[str]:
    arguments = {
        "--model": settings.model.gguf,
        "--n_ctx": settings.context,
        "--n_threads": settings.threads,
        "--n_threads_batch": settings.threads,
        "--logits_all": False,
        "--interrupt_requests": False,  # else a request ends the one that is running
        "--verbose": False,
        "--host": "127.0.0.1",
        "--port": port,
    }
    return [str(python), "-m", "llama_cpp.server", *_flat(arguments)]


def _llama_server(program: Path, settings: Settings, port: int) -> list[str]:
    arguments = {
        "--model": settings.model.gguf,
        "--ctx-size": settings.slots * settings.context,
        "--parallel": settings.slots,
        "--threads": settings.threads,
        "--threads-batch": settings.threads,
        "--reasoning-format": "none",
        # As for the others; a thought that its prompt opens does not fit its own JSON grammar.
        "--chat-template-kwargs": '{"enable_thinking": null}',
        "--host": "127.0.0.1",
        "--port": port,
    }
    return [str(program), *_flat(arguments)]


def _enginebay_layer(python: Path, _: Settings, port: int) -> list[str]:
    return [str(python), "-m", "benchmarks.layer", "enginebay", "--port", str(port)]


def _bare_app(python: Path, _: Settings, port: int) -> list[str]:
    return [str(python), "-m", "benchmarks.layer", "bare", "--port", str(port)]


def _tabbyapi(python: Path, _: Settings, port: int) -> list[str]:
    script = str(Path(__file__).with_name("layer_tabbyapi.py"))
    source = str(environments.tabbyapi_source())  # it has packages of the same names as Enginebay
    return [str(python), "-E", script, source, "--port", str(port)]


def _flat(arguments: Mapping[str, Any]) -> list[str]:
    return [str(part) for pair in arguments.items() for part in pair]


EXACT_LENGTH = {"ignore_eos": True, "stream_options": {"include_usage": True}}


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """As OpenAI's API asks for it."""
    named = {"name": "answer", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _json_object(schema: dict[str, Any]) -> dict[str, Any]:
    """As llama_cpp.server asks for it; only in chats."""
    return {"response_format": {"type": "json_object", "schema": schema}}


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "enginebay-hf",
            "hf",
            lambda: environments.enginebay("hf"),
            _enginebay_hf,
            EXACT_LENGTH,
            constrained=json_schema,
        ),
        Peer("transformers", "hf", environments.transformers, _transformers),
        Peer(
            "enginebay-llamacpp",
            "llamacpp",
            lambda: environments.enginebay("llamacpp"),
            _enginebay_llamacpp,
            EXACT_LENGTH,
            constrained=json_schema,
        ),
        Peer(
            "llama-cpp-python",
            "llamacpp",
            environments.llama_cpp_python,
            _llama_cpp_python,
            batches=False,
            health="/v1/models",
            constrained=_json_object,
        ),
        Peer(
            "llama-server",
            "llamacpp",
            environments.llama_server,
            _llama_server,
            EXACT_LENGTH,
            constrained=json_schema,
        ),
        Peer("enginebay-layer", "layer", lambda: Path(sys.executable), _enginebay_layer),
        Peer("tabbyapi", "layer", environments.tabbyapi, _tabbyapi),
        Peer(
            "limit: bare ASGI app",
            "layer",
            lambda: Path(sys.executable),
            _bare_app,
            limit=True,
        ),
    )
}
