"""A whole cluster on this machine: nodes and servers, each as a user starts it."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tests.cluster.hosts import Host
from tests.support import NO_TLS

PLUGINS = Path(__file__).parent / "plugins"
_PORTS = 60  # of the nodes of one machine

ADMIN, ANNA, BOB = (f"{name}-key-0123456789abcdef" for name in ("admin", "anna", "bob"))
KEYS = {
    "keys": [
        {"name": "admin", "key": ADMIN, "role": "admin"},
        {"name": "anna", "key": ANNA, "requests_per_minute": 5},
        {"name": "bob", "key": BOB, "concurrent_requests": 2},
    ]
}
CONFIG: dict[str, Any] = {
    "server": {
        "host": "127.0.0.1",
        "port": 0,
        "auth": "required",
        "keys_file": "keys.yml",
        "metrics": "on",
        "shutdown_timeout": 1,
    },
    "plugins": {"folder": str(PLUGINS)},
    "loading": {"from_model_dir": False},
}


class Site:
    """`folder` has the config, the keys and the token; `log` is what engines wrote there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events = folder / "events.jsonl"
        self.port = free_ports()
        self._stack = ExitStack()
        self._heard: dict[subprocess.Popen[str], list[str]] = {}
        self._logs: dict[subprocess.Popen[str], Path] = {}

    def configure(self, models: Sequence[dict[str, Any]], **cluster: Any) -> None:
        """Write a config with these models, whose engines run in this cluster."""
        settings = {"address": f"127.0.0.1:{self.port}", "heartbeat": 1} | cluster
        config = CONFIG | {"models": list(models), "cluster": settings}
        (self.folder / "config.yml").write_text(json.dumps(config), encoding="utf-8")
        keys = self.folder / "keys.yml"
        keys.touch(mode=0o600)
        keys.write_text(json.dumps(KEYS), encoding="utf-8")

    def up(self, nodes: int, *arguments: str) -> subprocess.Popen[str]:
        """`enginebay cluster up`, when all of its nodes run."""
        return self.start(
            *("cluster", "up", "--port", str(self.port), "--nodes", str(nodes), *arguments),
            until=rf"{nodes} of {nodes} more" if nodes else "The cluster's head runs",
        )

    def join(self, port: int, *arguments: str) -> subprocess.Popen[str]:
        """`enginebay cluster join`, when the node runs."""
        head = f"127.0.0.1:{self.port}"
        return self.start(
            *("cluster", "join", head, "--port", str(port), *arguments), until="is a node of"
        )

    def front(self) -> "Front":
        """`enginebay serve`, when all engines of its models take requests."""
        [front] = self.fronts(1)
        return front

    def fronts(self, number: int) -> list["Front"]:
        """As many of them, started together."""
        processes = [self.launch("serve") for _ in range(number)]
        fronts = []
        for process in processes:
            self.wait(process, "^Model ")
            fronts.append(Front(process, self.heard(process, r"listens on (\S+);")[0]))
        for front in fronts:
            while not front.all_engines_are_ready():
                time.sleep(0.1)
        return fronts

    def start(self, *arguments: str, until: str, host: Host | None = None) -> subprocess.Popen[str]:
        """An `enginebay` of these arguments, once it has printed what matches."""
        process = self.launch(*arguments, host=host)
        self.wait(process, until)
        return process

    def launch(self, *arguments: str, host: Host | None = None) -> subprocess.Popen[str]:
        """An `enginebay` of these arguments, which has only begun; `host`: where."""
        argv = [sys.executable, "-m", "enginebay.cli", *arguments]
        log = self.folder / f"{arguments[0]}-{len(list(self.folder.glob('*.log')))}.log"
        errors = self._stack.enter_context(log.open("w", encoding="utf-8"))
        process = subprocess.Popen(
            host.command(argv, self.folder) if host else argv,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env={**os.environ, "COLUMNS": "200", "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._stack.callback(end, process)
        self._heard[process] = []
        self._logs[process] = log
        return process

    def wait(self, process: subprocess.Popen[str], until: str) -> None:
        """Read what it prints until that matches."""
        assert process.stdout
        for line in process.stdout:
            self._heard[process].append(line)
            if re.search(until, line):
                return
        process.wait(60)
        text = self._logs[process].read_text(encoding="utf-8")
        raise AssertionError(f"{process.args} ended with {process.returncode}:\n{text[-3000:]}")

    def log_of(self, process: subprocess.Popen[str]) -> Path:
        """The file of what a process has written to its standard error."""
        return self._logs[process]

    def heard(self, process: subprocess.Popen[str], pattern: str) -> list[str]:
        """What a process has printed that matches."""
        lines = self._heard[process]
        return [found[1] for line in lines if (found := re.search(pattern, line))]

    def happened(self, *events: str) -> list[dict[str, Any]]:
        """What engines wrote down."""
        if not self.events.exists():
            return []
        lines = map(json.loads, self.events.read_text(encoding="utf-8").splitlines())
        return [line for line in lines if line["event"] in events]

    def processes(self) -> list[psutil.Process]:
        """Those that were started here and still run, and all that these have started."""
        started = [psutil.Process(each.pid) for each in self._logs if each.poll() is None]
        return [*started, *(child for each in started for child in each.children(recursive=True))]

    def close(self) -> None:
        """End all that was started here: servers together, then nodes, the last first."""
        for process in self._logs:
            if "serve" in process.args and process.poll() is None:  # type: ignore[operator]
                process.send_signal(signal.SIGINT)
        self._stack.close()


@dataclass
class Front:
    """A server, and clients for it."""

    process: subprocess.Popen[str]
    url: str

    def client(self, key: str = ADMIN) -> AsyncOpenAI:
        """To be closed by whoever asks for it."""
        http = DefaultAsyncHttpxClient(verify=NO_TLS)
        return AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=120, http_client=http
        )

    def get(self, path: str) -> httpx2.Response:
        """As an admin."""
        with self._http() as http:
            return http.get(self.url + path)

    def post(self, path: str, body: object = None) -> httpx2.Response:
        """As an admin."""
        with self._http() as http:
            return http.post(self.url + path, json=body)

    def all_engines_are_ready(self) -> bool:
        """Whether as many engines of each model take requests as are wanted."""
        answer = self.get("/v1/cluster")
        assert answer.status_code == 200, answer.text
        return all(model["ready"] == model["wanted"] for model in answer.json()["models"])

    def _http(self) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {ADMIN}"}
        return httpx2.Client(verify=NO_TLS, timeout=60, headers=headers)


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """One that ends with the block."""
    here = Site(folder)
    try:
        yield here
    finally:
        here.close()


def end(process: subprocess.Popen[str]) -> None:
    """As Ctrl-C does; what is left after that is killed, with all that it started."""
    family = _family(process.pid)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
    if process.stdout:
        process.stdout.close()
    _, alive = psutil.wait_procs(family, timeout=10)
    for each in alive:
        each.kill()


def _family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def replicas(model: str) -> list[psutil.Process]:
    """The processes of a model's replicas started here, the longest running first."""
    name = f"ServeReplica:enginebay-{model}:"
    found: list[psutil.Process] = []
    for process in psutil.Process().children(recursive=True):  # others may run clusters, too
        with suppress(psutil.Error):
            if name in " ".join(process.cmdline()):
                found.append(process)
    return sorted(found, key=psutil.Process.create_time)


def free_ports() -> int:
    """The first of as many ports as a cluster's nodes need, none of them in use."""
    for first in range(20_500 + os.getpid() % 97 * 100, 32_000, _PORTS):
        try:
            for port in range(first, first + _PORTS):
                with socket.socket() as probe:
                    probe.bind(("", port))
        except OSError:
            continue
        return first
    raise RuntimeError("no free ports")


async def until(condition: Callable[[], bool], seconds: float = 60) -> float:
    """Wait for what other processes do, which tell nobody; the seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, "it did not happen"
        await asyncio.sleep(0.05)
    return time.monotonic() - began
