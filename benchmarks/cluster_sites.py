"""What the benchmarks of clusters measure side by side: servers with their engines here and there.

All of them have the engine of `cluster_engine`, and are started as a user starts them.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from tests.cluster.site import Front, Site, replicas, site

PLUGINS = Path(__file__).parent / "cluster_plugins"
REMOTE = Path(__file__).parents[1] / "examples" / "enginebay-remote"
STEP = 0.02
"""Seconds of a step of the engines."""

WIDE = 80
"""Choices at once: more than there are streams."""

SERVER = {
    "host": "127.0.0.1",
    "port": 0,
    "auth": "admin",
    "keys_file": "keys.yml",
    "log_level": "warning",
    "shutdown_timeout": 1,
}

NAMES = ("thread", "process", "cluster", "cluster, window 0.05", "remote")
"""One process, with the engine on a thread and in a process of its own; a front with an engine in
a cluster, which sends each step or gathers 50 ms; a front and a second server with the engine."""

Processes = Callable[[], Sequence[psutil.Process]]


@dataclass(frozen=True, slots=True)
class Served:
    """A server, the name of its model, what its engine wrote down, and whose CPU time is whose.

    `front`: the server's own process. `engine`: those of the engine and around it, now. `rest`:
    all others of a cluster.
    """

    name: str
    model: str
    port: int
    events: Path
    front: psutil.Process
    engine: Processes
    rest: Processes

    def clocks(self) -> tuple[float, float, float]:
        """CPU seconds of the front, the engine's side and the rest so far."""
        return cpu([self.front]), cpu(self.engine()), cpu(self.rest())

    def happened(self, event: str, since: float) -> list[float]:
        """When the engine wrote this down, from a time on."""
        if not self.events.exists():
            return []
        lines = map(json.loads, self.events.read_text(encoding="utf-8").splitlines())
        return [line["time"] for line in lines if line["event"] == event and line["time"] >= since]


def cpu(processes: Sequence[psutil.Process]) -> float:
    """Seconds that they have used so far; those that ended have used none."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def cpu_of_all() -> float:
    """Seconds that the whole machine has used so far."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def family(process: psutil.Process) -> list[psutil.Process]:
    """A process and all that it started."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def entry(model: str, events: Path | None = None, **more: Any) -> dict[str, Any]:
    """A model of the config; `options` in `more` go to the engine."""
    options = {"step": STEP, "batch": WIDE, "stamped": True} | more.pop("options", {})
    if events:
        options["log"] = str(events)
    return {
        "name": model,
        "backend": "paced",
        "path": str(PLUGINS),
        "options": options,
        **more,
    }


def write_config(here: Site, name: str, model: dict[str, Any], **cluster: Any) -> Path:
    """A config of one model, where only admins need a key; `cluster`: its settings if any."""
    config: dict[str, Any] = {
        "server": SERVER,
        "plugins": {"folder": str(PLUGINS)},
        "loading": {"from_model_dir": False},
        "models": [model],
    }
    if cluster:
        address = {"address": f"127.0.0.1:{here.port}", "heartbeat": 5}
        config["cluster"] = address | cluster
    file = here.folder / f"{name}.yml"
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


def serve(here: Site, config: Path) -> Front:
    """A server with this config, when its model and all engines of it take requests."""
    process = here.start("serve", "--config", str(config), until="^Model ")
    front = Front(process, here.heard(process, r"listens on (\S+);")[0])
    while front.get("/health").status_code != 200:
        time.sleep(0.1)
    if "cluster" in json.loads(config.read_text(encoding="utf-8")):
        while not front.all_engines_are_ready():
            time.sleep(0.2)
    return front


def port_of(front: Front) -> int:
    """Where it listens."""
    return int(front.url.rpartition(":")[2])


def _none() -> Sequence[psutil.Process]:
    return ()


@contextmanager
def servers(names: Sequence[str]) -> Iterator[list[Served]]:
    """Those of `NAMES`, all at once, until the block ends."""
    with a_site() as here:
        found = [_alone(here, name) for name in names if name in ("thread", "process")]
        windows = [name for name in names if name.startswith("cluster")]
        if windows:
            up = psutil.Process(here.up(1, "--cpus", "2").pid)
            found += [in_cluster(here, up, name, 0.05 if "," in name else 0) for name in windows]
        if "remote" in names:
            found.append(_remote(here))
        yield found


def find_plugins() -> None:
    """Have `enginebay-remote` found by all that is started from now on."""
    if str(REMOTE) not in sys.path:
        sys.path.append(str(REMOTE))


@contextmanager
def a_site() -> Iterator[Site]:
    """A folder, and what is started in it, until the block ends."""
    find_plugins()
    with TemporaryDirectory(prefix="enginebay-cluster-") as folder, site(Path(folder)) as here:
        here.configure([], window=0)
        yield here


def _alone(here: Site, isolation: str) -> Served:
    events = here.folder / f"{isolation}.jsonl"
    config = write_config(here, isolation, entry("paced", events, isolation=isolation))
    front = serve(here, config)
    own = psutil.Process(front.process.pid)
    return Served(isolation, "paced", port_of(front), events, own, lambda: family(own)[1:], _none)


def in_cluster(here: Site, up: psutil.Process, name: str, window: float) -> Served:
    """A front and one engine in the cluster that `up` runs."""
    # The processes of replicas are found by the name, whoever started them.
    model = f"paced-{os.getpid()}-{window * 1000:.0f}"
    events = here.folder / f"{model}.jsonl"
    placed = entry(model, events, cluster={"replicas": 1, "cpus": 0.1})
    front = serve(here, write_config(here, model, placed, window=window))

    def engine() -> list[psutil.Process]:
        return [each for replica in replicas(model) for each in family(replica)]

    def rest() -> list[psutil.Process]:
        busy = {each.pid for each in engine()}
        return [each for each in family(up) if each.pid not in busy]

    own = psutil.Process(front.process.pid)
    return Served(name, model, port_of(front), events, own, engine, rest)


def _remote(here: Site) -> Served:
    events = here.folder / "remote.jsonl"
    behind = serve(here, write_config(here, "behind", entry("paced", events, isolation="thread")))
    model = {"name": "paced", "backend": "remote", "path": f"{behind.url}/v1"}
    front = serve(here, write_config(here, "remote", model))
    engine = psutil.Process(behind.process.pid)
    own = psutil.Process(front.process.pid)
    return Served("remote", "paced", port_of(front), events, own, lambda: family(engine), _none)
