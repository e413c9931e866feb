"""A cluster whose nodes are machines of their own: see `hosts`.

`head` only places engines, which run on `left` and `right`; servers run on `desk`.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.cluster.asking import said, whole
from tests.cluster.hosts import Host, Network, network
from tests.cluster.site import PLUGINS, Front, Site
from tests.cluster.streams import eventually

PORT = 6379
MODEL: dict[str, Any] = {
    "backend": "talker",
    "path": str(PLUGINS),
    "cluster": {"replicas": 2, "per_node": 1, "cpus": 0.1, "labels": ["engines"]},
}
"""One with an engine on each machine that has engines."""


class FarSite(Site):
    """`machines` are those with engines, by name."""

    def __init__(self, folder: Path, network: Network) -> None:
        super().__init__(folder)
        self.network = network
        self.head = network.host("head")
        self.desk = network.host("desk")
        self.machines: dict[str, Host] = {}
        self.nodes: dict[str, subprocess.Popen[str]] = {}

    @property
    def address(self) -> str:
        """Of the cluster."""
        return f"{self.head.address}:{PORT}"

    def configure(self, models: Sequence[dict[str, Any]], **cluster: Any) -> None:
        """As of a `Site`; servers can be reached from the tests."""
        super().configure(models, address=self.address, **cluster)
        config = json.loads((self.folder / "config.yml").read_text(encoding="utf-8"))
        config["server"]["host"] = "0.0.0.0"
        (self.folder / "config.yml").write_text(json.dumps(config), encoding="utf-8")

    def begin(self) -> None:
        """Run the cluster."""
        self.run_head()
        self.run_engines("left")
        self.run_engines("right")
        self.run_node(self.desk, "--cpus", "0")

    def run_head(self) -> None:
        """`enginebay cluster up`, on `head`, which needs to be turned on."""
        self.nodes["head"] = self.start(
            *("cluster", "up", "--host", self.head.address, "--port", str(PORT), "--cpus", "0"),
            until="The cluster's head runs",
            host=self.head,
        )

    def run_node(self, host: Host, *arguments: str) -> None:
        """`enginebay cluster join`, there."""
        self.nodes[host.name] = self.start(
            *("cluster", "join", self.address, "--host", host.address, *arguments),
            until="is a node of",
            host=host,
        )

    def run_engines(self, name: str) -> Host:
        """Have a machine of this name that may run engines; turns it on again if there was one."""
        host = self.machines.get(name)
        if host is None:
            host = self.machines[name] = self.network.host(name)
        elif not host.is_on:
            host.boot()
        self.run_node(host, "--label", "engines", "--cpus", "1")
        return host

    def server(self) -> Front:
        """`enginebay serve`, on `desk`, when all engines take requests."""
        process = self.launch("serve", host=self.desk)
        self.wait(process, "^Model ")
        [port] = self.heard(process, r"listens on \S+:(\d+);")
        front = Front(process, f"http://{self.desk.address}:{port}")
        began = time.monotonic()
        while not is_whole(front):
            assert time.monotonic() < began + 90, front.get("/v1/cluster").text
            time.sleep(0.2)
        return front

    def kill(self, front: Front) -> None:
        """As `kill -9` does with a server."""
        [server] = psutil.Process(front.process.pid).children()
        server.kill()
        front.process.wait()

    def command(
        self, *arguments: str, host: Host | None = None
    ) -> subprocess.CompletedProcess[str]:
        """An `enginebay` that ends by itself, on `desk`."""
        process = self.launch(*arguments, host=host or self.desk)
        output, _ = process.communicate(timeout=60)
        errors = self.log_of(process).read_text(encoding="utf-8")
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def python(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A program of somebody else, on `desk`."""
        return subprocess.run(
            self.desk.command([sys.executable, "-c", code], self.folder),
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=90,
        )


def talker(here: FarSite, name: str = "talker", **options: Any) -> dict[str, Any]:
    """Such a model, which writes down what happens."""
    every = {"log": str(here.events), "step": 0.02} | options
    return MODEL | {"name": name, "options": every}


def some(host: Host, model: str = "talker") -> psutil.Process:
    """The process of the model's engine there."""
    [replica] = host.replicas(model)
    return replica


def is_whole(front: Front) -> bool:
    """Whether as many engines as are wanted take requests."""
    answer = front.get("/v1/cluster")
    return answer.status_code == 200 and all(
        model["ready"] == model["wanted"] for model in answer.json()["models"]
    )


def is_settled(front: Front) -> bool:
    """The same, and no request is there, in the server or an engine."""
    answer = front.get("/v1/cluster")
    if answer.status_code != 200 or front.get("/v1/requests").json()["data"]:
        return False
    return is_whole(front) and not any(each["running"] for each in answer.json()["engines"])


async def settled(here: FarSite, front: Front, seconds: float = 60) -> None:
    """Wait until all is well."""
    await eventually(lambda: is_settled(front), seconds)
    await both_answer(here, front, seconds)
    await eventually(lambda: is_settled(front), seconds)


async def both_answer(here: FarSite, front: Front, seconds: float = 60) -> None:
    """Wait until requests to this server are answered by engines on two machines."""
    began, before = time.monotonic(), len(here.happened("add"))
    async with front.client() as openai:
        while True:
            answers = await asyncio.gather(*(said(openai, f"both {i}", 5) for i in range(4)))
            assert answers == [(whole(5), None)] * 4, answers
            if len({each["host"] for each in here.happened("add")[before:]}) == 2:
                return
            assert time.monotonic() < began + seconds, "one engine answers everything"
            await asyncio.sleep(0.2)


@contextmanager
def far_site(folder: Path) -> Iterator[FarSite]:
    """One that ends with the block."""
    with network(folder) as machines:
        here = FarSite(folder, machines)
        try:
            yield here
        finally:
            machines.turn_off()
            here.close()
