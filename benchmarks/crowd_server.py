"""The server that a crowd of clients comes to, and what it holds of the machine."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psutil  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
MODELS = ("one", "two", "three")
GROWTH = 0.1
"""Share by which memory may be more than after the warm-up."""

SPARE = 8
"""Threads and open files by which there may be more: pools fill up as they are needed."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the server holds: megabytes in RAM of all its processes, threads, open files."""

    megabytes: int
    processes: int
    threads: int
    files: int

    def grown_to(self, later: "Footprint") -> list[str]:
        """What of it has grown beyond the bounds."""
        pairs = {
            "megabytes": self.megabytes * (1 + GROWTH),
            "processes": self.processes,
            "threads": self.threads + SPARE,
            "files": self.files + SPARE,
        }
        return [name for name, bound in pairs.items() if getattr(later, name) > bound]

    @classmethod
    def of(cls, pid: int) -> "Footprint":
        """What a process and its children hold now."""
        root = psutil.Process(pid)
        seen = [root, *root.children(recursive=True)]
        return cls(
            round(sum(process.memory_info().rss for process in seen) / 1e6),
            len(seen),
            sum(process.num_threads() for process in seen),
            sum(process.num_fds() for process in seen),
        )


@contextmanager
def serving(config: Path, url: str, log: Path) -> Iterator[int]:
    """A server with this config until the block ends; its process id."""
    with log.open("wb") as output:
        command = [sys.executable, "-m", "enginebay.cli", "serve", "--config", str(config)]
        server = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        try:
            while server.poll() is None:
                with suppress(httpx2.TransportError):
                    if httpx2.get(f"{url}/health").status_code == 200:
                        break
                time.sleep(0.3)
            if server.poll() is not None:
                raise SystemExit(f"the server did not start: {log.read_text()[-2000:]}")
            yield server.pid
        finally:
            server.terminate()
            server.wait(60)


def write_config(folder: Path, backend: str, path: Path, port: int) -> Path:
    """Three models of the same files: two loaded at start, one when it is asked for."""
    entries = [
        {
            "name": name,
            "backend": backend,
            "path": str(path),
            "options": {"max_batch_size": 8, "context_length": 512, "threads": 1},
            "load": "request" if name == "three" else "start",
        }
        for name in MODELS
    ]
    server = {"port": port, "auth": "required", "log_level": "warning"}
    config = folder / "config.yml"
    config.write_text(
        json.dumps({"server": server, "models": entries, "loading": {"drain_timeout": 5}}),
        encoding="utf-8",
    )
    return config


def change_config(config: Path, draw: random.Random) -> None:
    """Give a model other options or another alias, add a fourth one or take it out again."""
    data = json.loads(config.read_text(encoding="utf-8"))
    *_, last = models = data["models"]
    if last["name"] == "four":
        models.pop()
    else:
        models.append({**last, "name": "four", "aliases": [], "load": "request"})
    changed = models[draw.randrange(len(MODELS))]
    changed["options"]["max_batch_size"] = draw.choice((6, 7, 8))
    changed["aliases"] = [f"alias-{draw.randrange(1000)}"]
    changed["sampling"] = {"temperature": round(draw.random(), 2)}
    new = config.with_suffix(".new")
    new.write_text(json.dumps(data), encoding="utf-8")
    new.replace(config)
