"""Many clients that come and go, while models are switched, and keys and the config change: does
anything leak?

    python3 start.py python benchmarks/crowd.py --backend hf --clients 64 --minutes 5
    python3 start.py python benchmarks/crowd.py --disturb config    # no stream may be cut then

Clients stream or wait, some leave in the middle, at random moments; meanwhile models are unloaded
and loaded, requests cancelled, the keys file is rewritten, so that some clients hold a key that is
gone, and the config is changed and read again. Every response must be whole (a finish reason for
each choice, `[DONE]` behind a stream), a clear error in OpenAI's shape, or one that the client
itself left. At the end nothing may be left: no request that runs or waits, in the server or in an
engine, no part of a KV cache that is held, and no more processes, threads, open files and memory
than after the warm-up. Exits with 1 otherwise.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from benchmarks import environments, models, report
from benchmarks.crowd_clients import Crowd
from benchmarks.crowd_server import Footprint, serving, write_config
from benchmarks.servers import free_port

DISTURBANCES = ("models", "keys", "cancel", "config")
"""What happens meanwhile; a change of the config alone must not end any answer."""


def _demo(backend: str) -> Path:
    """The demo model as the backend wants it."""
    demo = models.find("demo", "float32")
    if backend != "llamacpp":
        return demo.folder
    models.ensure_gguf(demo)
    return demo.gguf


async def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="hf")
    parser.add_argument("--path", type=Path, help="a model; not set, the demo model")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--warm-up", type=float, default=1, help="minutes before it counts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--disturb", nargs="+", choices=DISTURBANCES, default=DISTURBANCES)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        results = await crowded(args, Path(name))
    print(json.dumps(results, indent=2))
    if args.output:
        versions = environments.installed_versions(Path(sys.executable))
        report.write({**report.machine(), "versions": versions, **results}, args.output)
    sys.exit(1 if results["broken"] or results["left_over"] or results["grown"] else 0)


async def crowded(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run it; what was seen."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    crowd = Crowd(folder, args.seed)
    config = write_config(folder, args.backend, args.path or _demo(args.backend), port)
    with serving(config, url, folder / "log") as pid:
        phase = partial(run_phase, crowd=crowd, args=args, config=config, url=url, pid=pid)
        before = await phase("warm-up", args.warm_up)
        crowd.outcomes.clear()
        after = await phase("crowd", args.minutes)
    if tuple(args.disturb) == ("config",):
        cut = {"ended by the server", "error in the stream", "error 503"} & set(crowd.outcomes)
        crowd.broken += [f"cut by a change of the config: {outcome}" for outcome in sorted(cut)]
    return {
        "backend": args.backend,
        "clients": args.clients,
        "minutes": args.minutes,
        "disturbed by": list(args.disturb),
        "outcomes": dict(sorted(crowd.outcomes.items())),
        "broken": crowd.broken[:20],
        "left_over": crowd.left_over,
        "before": asdict(before),
        "after": asdict(after),
        "grown": before.grown_to(after),
    }


async def run_phase(
    name: str,
    minutes: float,
    *,
    crowd: Crowd,
    args: argparse.Namespace,
    config: Path,
    url: str,
    pid: int,
) -> Footprint:
    """Let the clients in for so long; what the server holds once they have left."""
    limits = httpx2.Limits(max_connections=None)
    crowd.over = False
    async with httpx2.AsyncClient(base_url=url, timeout=300, limits=limits) as http:
        await crowd.ask_every_model(http)
        async with asyncio.TaskGroup() as group:
            for _ in range(args.clients):
                group.create_task(crowd.client(http))
            disturbances = {
                "models": crowd.switch_models(http, every=8),
                "keys": crowd.change_keys(every=3),
                "cancel": crowd.cancel(http, every=2),
                "config": crowd.reload_config(http, config, every=4),
            }
            for disturbance, doing in disturbances.items():
                if disturbance in args.disturb:
                    group.create_task(doing)
                else:
                    doing.close()
            end = time.monotonic() + minutes * 60
            while (left := end - time.monotonic()) > 0:
                await asyncio.sleep(min(30, left))
                print(f"{name}: {Footprint.of(pid)}", flush=True)
            crowd.over = True
    async with httpx2.AsyncClient(base_url=url, timeout=300) as http:
        await crowd.ask_every_model(http)
        await crowd.look_for_left_overs(http)
    footprint = Footprint.of(pid)
    print(f"after the {name}: {footprint}", flush=True)
    return footprint


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    asyncio.run(main())
