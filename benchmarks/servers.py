"""The servers that are compared: how each is started, asked and stopped."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks import environments
from benchmarks.models import Model

Prompt = str | Sequence[Mapping[str, str]]
"""A text to continue, or the messages of a chat."""

_START_TIMEOUT = 180.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The same for every server: the model, CPU threads, and room for `slots` sequences at once
    of `context` tokens each.
    """

    model: Model
    threads: int
    slots: int
    context: int


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that can be measured.

    `engine` says which servers it is compared with. `command` gives what starts it on a port,
    `body` what its requests have beside what all have. `batches` is whether it runs several
    requests at once. `constrained` gives what else a request has whose answer must be of a JSON
    schema; None where that cannot be asked for. `limit` is for one that no server can be faster
    than.
    """

    name: str
    engine: str
    install: Callable[[], Path]
    command: Callable[[Path, Settings, int], list[str]]
    body: Mapping[str, Any] = field(default_factory=dict)
    batches: bool = True
    health: str = "/health"
    constrained: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    limit: bool = False

    def versions(self) -> dict[str, str]:
        """The versions of what it is made of."""
        program = self.install()
        if program.name == "llama-server":
            return {"source package of llama_cpp_python": environments.LLAMA_CPP_PYTHON}
        if self.name == "tabbyapi":
            commit = {"tabbyapi": environments.TABBYAPI}
            return commit | environments.installed_versions(program)
        return environments.installed_versions(program)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    peer: Peer
    port: int
    model: str
    _process: psutil.Process

    def request(self, prompt: Prompt, tokens: int) -> tuple[str, dict[str, Any]]:
        """Path and body of a streamed greedy request for an answer of `tokens` tokens.

        A text goes to `/v1/completions`, messages to `/v1/chat/completions`.
        """
        text = isinstance(prompt, str)
        path = "/v1/completions" if text else "/v1/chat/completions"
        asked = {"model": self.model, "prompt" if text else "messages": prompt}
        greedy = {"max_tokens": tokens, "temperature": 0, "stream": True}
        return path, {**asked, **greedy, **self.peer.body}

    def constrained(self, schema: dict[str, Any]) -> "Server":
        """The same server, asked for answers of this JSON schema."""
        if self.peer.constrained is None:
            raise RuntimeError(f"{self.peer.name} cannot keep to a JSON schema")
        body = {**self.peer.body, **self.peer.constrained(schema)}
        return replace(self, peer=replace(self.peer, body=body))

    def cpu_seconds(self) -> float:
        """CPU time that it and its child processes have used so far."""
        times = [process.cpu_times() for process in self._processes()]
        return float(sum(t.user + t.system for t in times))

    def resident_bytes(self) -> int:
        """Memory that it and its child processes have in RAM now."""
        return sum(process.memory_info().rss for process in self._processes())

    def pause(self) -> None:
        """Stop it from running, so that it takes nothing from another that is measured."""
        for process in self._processes():
            process.suspend()

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Let a paused server run until the block ends."""
        for process in self._processes():
            process.resume()
        try:
            yield
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.pause()

    def _processes(self) -> list[psutil.Process]:
        return [self._process, *self._process.children(recursive=True)]


@contextlib.contextmanager
def running(peer: Peer, settings: Settings) -> Iterator[Server]:
    """Start the server on a free port, wait until it is healthy, and stop it at the end.

    Raises RuntimeError with the end of its log when it does not come up.
    """
    port = free_port()
    environments.FOLDER.mkdir(exist_ok=True)
    log = environments.FOLDER / f"{peer.name.removeprefix('limit: ')}.log"
    command = peer.command(peer.install(), settings, port)
    environment = os.environ | {"OMP_NUM_THREADS": str(settings.threads), "HF_HUB_OFFLINE": "1"}
    with log.open("w", encoding="utf-8") as output:
        popen = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        _wait_until_healthy(popen, f"http://127.0.0.1:{port}{peer.health}", log)
        ours = peer.name.startswith("enginebay") or peer.engine == "layer"
        name = "bench" if ours else str(settings.model.folder)
        yield Server(peer, port, name, psutil.Process(popen.pid))
    finally:
        _stop(popen)


def _stop(popen: "subprocess.Popen[bytes]") -> None:
    """End the server's whole session, a paused one too."""
    for signal_number in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(popen.pid, signal_number)
        if signal_number == signal.SIGTERM:
            with contextlib.suppress(subprocess.TimeoutExpired):
                popen.wait(10)
    popen.wait()


def _wait_until_healthy(popen: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < deadline and popen.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except urllib.error.HTTPError as answer:
            if b'"failed"' in answer.read():
                break
        except OSError:
            pass
        time.sleep(0.2)
    end = "".join(log.read_text(encoding="utf-8", errors="replace").splitlines(True)[-20:])
    raise RuntimeError(f"{log.stem} did not start:\n{end}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def enginebay(backend: str, path: Path, options: dict[str, Any], port: int) -> list[str]:
    """Write the config.yml (JSON is YAML); the command that serves it with this Python."""
    model = {"name": "bench", "backend": backend, "path": str(path), "options": options}
    model["reasoning"] = "none"  # as for the others: a thought is text of the answer
    server = {"port": port, "log_level": "warning"}
    config = environments.FOLDER / f"enginebay-{backend}.yml"
    config.write_text(json.dumps({"server": server, "models": [model]}), encoding="utf-8")
    return [sys.executable, "-m", "core.cli", "serve", "--config", str(config)]


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
