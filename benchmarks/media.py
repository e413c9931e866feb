"""Pictures beside text: do streams stall, and does memory grow?

    python3 start.py python benchmarks/media.py --backend hf --path demo/model

Streams of text run alone, beside as many clients that send a text of the same length, and beside as
many that send a new picture with every request; the gaps between their tokens are compared. Then
pictures are sent one after another, each a new one, and the memory of the server's processes is
read on the way.
"""

import argparse
import asyncio
import base64
import io
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import psutil  # type: ignore[import-untyped]
from PIL import Image, ImageDraw

from benchmarks import report
from benchmarks.servers import free_port

_START_TIMEOUT = 180.0
_COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "black", "white")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server and its process."""

    url: str
    process: psutil.Process

    def megabytes(self) -> float:
        """What it and its engine's process have in RAM."""
        processes = [self.process, *self.process.children(recursive=True)]
        return float(sum(process.memory_info().rss for process in processes)) / 1e6


@contextmanager
def running(backend: str, path: str, options: report.Json) -> Iterator[Server]:
    """A server with one model, until the block ends."""
    port = free_port()
    model = {"name": "m", "backend": backend, "path": str(Path(path).resolve()), "options": options}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yml"
        config.write_text(
            json.dumps({"server": {"port": port, "log_level": "warning"}, "models": [model]}),
            encoding="utf-8",
        )
        command = [sys.executable, "-m", "enginebay.cli", "serve", "--config", str(config)]
        with subprocess.Popen(command) as process:
            try:
                url = f"http://127.0.0.1:{port}"
                _wait(url, process)
                yield Server(url, psutil.Process(process.pid))
            finally:
                process.terminate()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx2.get(f"{url}/health/ready").status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError("the server did not start")


def picture(generator: random.Random, side: int) -> str:
    """A data URL of a picture like no other."""
    noise = Image.effect_noise((side, side), 20).convert("RGB")
    draw = ImageDraw.Draw(noise)
    for _ in range(3):
        x, y = (generator.randrange(side) for _ in range(2))
        box = (x, y, x + side // 4, y + side // 4)
        draw.ellipse(box, fill=generator.choice(_COLOURS))
    written = io.BytesIO()
    noise.save(written, "PNG")
    return f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}"


@dataclass(slots=True)
class Stream:
    """Times at which the pieces of one answer came."""

    sent: float
    arrivals: list[float] = field(default_factory=list)

    @property
    def gaps(self) -> list[float]:
        """Milliseconds between one piece and the next."""
        times = self.arrivals
        return [1000 * (b - a) for a, b in pairwise(times)]


async def answer(http: httpx2.AsyncClient, content: Any, tokens: int) -> Stream:
    """One streamed answer of exactly so many tokens."""
    body = {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 1.0,
        "stream": True,
    }
    stream = Stream(time.perf_counter())
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError((await response.aread()).decode())
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                stream.arrivals.append(time.perf_counter())
    return stream


async def gaps(server: Server, beside: str, clients: int, side: int) -> report.Json:
    """Gaps of the text streams while others send what `beside` says; also when these began."""
    generator = random.Random(beside)
    words = " ".join(generator.choice(_COLOURS) for _ in range(40))
    pictures = iter([picture(generator, side) for _ in range(clients * 12)])
    first: list[float] = []
    async with httpx2.AsyncClient(base_url=server.url, timeout=120) as http:

        async def others() -> None:
            while True:
                text = {"type": "text", "text": f"{generator.random()} {words}"}
                parts = [text]
                if beside == "pictures":
                    url = next(pictures)
                    parts = [{"type": "image_url", "image_url": {"url": url}}, text]
                stream = await answer(http, parts, 8)
                first.append(1000 * (stream.arrivals[0] - stream.sent))

        tasks = [asyncio.create_task(others()) for _ in range(clients if beside != "alone" else 0)]
        streams = await asyncio.gather(
            *(answer(http, f"Tell a story of {i}.", 200) for i in range(clients))
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    found = sorted(gap for stream in streams for gap in stream.gaps)
    first.sort()
    return {
        "gap_p50_ms": round(found[len(found) // 2], 1),
        "gap_p95_ms": round(found[int(len(found) * 0.95)], 1),
        "gap_max_ms": round(found[-1], 1),
        "answers_beside": len(first),
        "first_token_p50_ms": round(first[len(first) // 2], 1) if first else None,
    }


async def memory(server: Server, pictures: int, side: int) -> dict[int, float]:
    """Megabytes after so many pictures, each a new one, eight at a time."""
    generator = random.Random(9)
    seen: dict[int, float] = {}
    async with httpx2.AsyncClient(base_url=server.url, timeout=120) as http:
        for done in range(0, pictures, 10):
            parts = [
                [{"type": "image_url", "image_url": {"url": picture(generator, side)}}]
                for _ in range(10)
            ]
            await asyncio.gather(*(answer(http, part, 4) for part in parts))
            if done + 10 in (10, 50, 100, 200, 300, 400) or done + 10 == pictures:
                seen[done + 10] = round(server.megabytes(), 1)
                print(f"{done + 10:5} pictures {seen[done + 10]:8} MB", flush=True)
    return seen


async def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="hf")
    parser.add_argument("--path", default="demo/model")
    parser.add_argument("--options", default="{}", help="JSON: options of the backend")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--pictures", type=int, default=500)
    parser.add_argument("--side", type=int, default=256, help="pixels of a picture's side")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    results = {**report.machine(), "backend": args.backend, "path": args.path}
    with running(args.backend, args.path, json.loads(args.options)) as server:
        await gaps(server, "alone", args.clients, args.side)  # warms up
        for beside in ("alone", "text", "pictures"):
            results[beside] = await gaps(server, beside, args.clients, args.side)
            print(f"{beside:10}", results[beside], flush=True)
        results["megabytes"] = await memory(server, args.pictures, args.side)
    if args.output:
        report.write(results, args.output)
        print(f"Written to {args.output}")


if __name__ == "__main__":
    asyncio.run(main())
