"""The cluster that a crowd comes to, and who kills parts of it meanwhile."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from benchmarks.cluster_sites import PLUGINS, family, find_plugins
from benchmarks.servers import free_port
from tests.cluster.site import ADMIN, Front, Site, replicas, site

MODELS = {
    f"even-{os.getpid()}": {"step": 0.05, "batch": 16},
    f"odd-{os.getpid()}": {"step": 0.08, "prefill_token": 0.0005, "batch": 8, "cache": 8000},
}
"""Their engines' options. Processes of engines are found by the name, whoever started them."""

USERS = ("ann", "bob", "cid")
RATED, RATE = "rated", 40
"""A key, and how many requests a minute it may have."""

NARROW, WIDTH = "narrow", 3
"""A key, and how many requests it may have at once."""

KEYS = (*USERS, RATED, NARROW)
REPLICAS = 2
_NODE_PORTS = (40, 50)
"""After the head's first port: of a node that joins, and joins again when it was killed."""

_DOWN = 90.0
"""Seconds in which what was killed must be back."""


def secret(key: str) -> str:
    """What a client sends as this key."""
    return f"{key}-key-0123456789abcdef"


@dataclass(slots=True)
class Outage:
    """When a front was killed and answered again, by `time.time`; infinite while it does not."""

    front: int
    killed: float
    back: float = float("inf")


@dataclass(slots=True)
class Place:
    """The cluster, its two fronts and its node that comes and goes.

    `killed`: when each process of an engine was killed, by its id. `enough`: nothing more is to be.
    """

    here: Site
    urls: list[str]
    events: Path
    fronts: list[Front] = field(default_factory=list)
    head: psutil.Process | None = None
    node: psutil.Process | None = None
    outages: list[Outage] = field(default_factory=list)
    killed: dict[int, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    joined: int = 0

    def start_front(self, number: int) -> Front:
        """The front of this number, when its models and all their engines are ready."""
        process = self.here.launch("serve", "--config", f"front{number}.yml")
        self.here.wait(process, "^Model ")
        front = Front(process, self.urls[number])
        deadline = time.monotonic() + _DOWN
        while not self.is_whole(front):
            if time.monotonic() > deadline:
                raise RuntimeError(f"after {_DOWN} s: {front.get('/v1/cluster').text}")
            time.sleep(0.2)
        return front

    def is_whole(self, front: Front) -> bool:
        """Whether all engines are ready, as this front sees it."""
        return front.get("/v1/cluster").status_code == 200 and front.all_engines_are_ready()

    def join(self) -> None:
        """Have the node that comes and goes."""
        port = self.here.port + _NODE_PORTS[self.joined % len(_NODE_PORTS)]
        self.joined += 1
        self.node = psutil.Process(self.here.join(port, "--cpus", "1").pid)

    def engines(self) -> list[psutil.Process]:
        """The processes of all replicas."""
        return [each for model in MODELS for each in replicas(model)]

    def shared(self) -> set[int]:
        """The processes of what servers share, which nobody kills here."""
        assert self.head
        return {each.pid for each in family(self.head) if "ray::_Host" in name_of(each)}

    async def goes_on(self, seconds: float) -> bool:
        """Wait for so long; False, at once, when there has been enough killing."""
        try:
            await asyncio.wait_for(self.enough.wait(), seconds)
        except TimeoutError:
            return True
        return False

    def count(self, event: str) -> None:
        """Something was done."""
        self.counts[event] = self.counts.get(event, 0) + 1


def name_of(process: psutil.Process) -> str:
    """What it calls itself; nothing if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@contextmanager
def place() -> Iterator[Place]:
    """All of it until the block ends: a head, a node, another node, two fronts."""
    find_plugins()
    with TemporaryDirectory(prefix="enginebay-crowd-") as folder, site(Path(folder)) as here:
        events = here.folder / "events.jsonl"
        _write_keys(here.folder / "keys.yml")
        urls = [_write_config(here, number, events) for number in range(2)]
        found = Place(here, urls, events)
        found.head = psutil.Process(here.up(1, "--cpus", "1").pid)
        found.join()
        found.fronts = [found.start_front(number) for number in range(2)]
        yield found


def _write_keys(file: Path) -> None:
    entries: list[dict[str, Any]] = [{"name": "admin", "key": ADMIN, "role": "admin"}]
    entries += [{"name": name, "key": secret(name)} for name in USERS]
    entries.append({"name": RATED, "key": secret(RATED), "requests_per_minute": RATE})
    entries.append({"name": NARROW, "key": secret(NARROW), "concurrent_requests": WIDTH})
    file.touch(mode=0o600)
    file.write_text(json.dumps({"keys": entries}), encoding="utf-8")


def _write_config(here: Site, number: int, events: Path) -> str:
    """That of a front; its address. `cluster up` reads that of the first one, too."""
    port = free_port()
    placed = {"replicas": REPLICAS, "per_node": 1, "cpus": 0.1}
    models = [
        {
            "name": name,
            "backend": "paced",
            "path": str(PLUGINS),
            "options": {**options, "log": str(events)},
            "cluster": placed,
        }
        for name, options in MODELS.items()
    ]
    server = {
        "host": "127.0.0.1",
        "port": port,
        "auth": "required",
        "keys_file": "keys.yml",
        "metrics": "on",
        "log_level": "info",
        "shutdown_timeout": 1,
    }
    config = {
        "server": server,
        "plugins": {"folder": str(PLUGINS)},
        "loading": {"from_model_dir": False},
        "models": models,
        "cluster": {
            "address": f"127.0.0.1:{here.port}",
            "heartbeat": 2,
            "share_limits": True,
        },
    }
    text = json.dumps(config)
    names = ("config", "front0") if number == 0 else (f"front{number}",)
    for name in names:
        (here.folder / f"{name}.yml").write_text(text, encoding="utf-8")
    return f"http://127.0.0.1:{port}"


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.Error:
            continue


async def kill_engines(place: Place, draw: random.Random, every: float) -> None:
    """Kill one now and then."""
    while await place.goes_on(every * draw.uniform(0.7, 1.3)):
        if found := place.engines():
            victim = draw.choice(found)
            _kill([victim])
            place.killed[victim.pid] = time.time()
            place.count("engines killed")


async def kill_node(place: Place, draw: random.Random, every: float) -> None:
    """Kill all processes of the node, and have it join again."""
    while await place.goes_on(every * draw.uniform(0.7, 1.3)):
        assert place.node
        victims = family(place.node)
        _kill(victims)
        now = time.time()
        place.killed.update((victim.pid, now) for victim in victims)
        place.count("nodes killed")
        await asyncio.sleep(3)
        await asyncio.to_thread(place.join)
        place.count("nodes joined again")


async def kill_front(place: Place, draw: random.Random, every: float) -> None:
    """Kill the second front, and start it again."""
    number = 1
    while await place.goes_on(every * draw.uniform(0.7, 1.3)):
        outage = Outage(number, time.time())
        place.outages.append(outage)
        _kill(family(psutil.Process(place.fronts[number].process.pid)))
        place.count("fronts killed")
        await asyncio.sleep(1)
        place.fronts[number] = await asyncio.to_thread(place.start_front, number)
        outage.back = time.time()
        place.count("fronts started again")
