"""The first token of a long conversation after a restart, with saved KV and without.

    python3 start.py python benchmarks/restart.py [--engines hf,llamacpp] [--model 100m]

Each round starts a server, has it read a prompt and answer, stops it, starts it again, and measures
the first token of the next turn; with `loading.cache_dir` and without it by turns. Prints a table
in Markdown.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import environments, models, servers
from benchmarks.peer_commands import enginebay

_NEW_TOKENS = 20
"""Of what the user says next."""

_ANSWER = 32


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer: seconds to the first token and between tokens, and the usage."""

    ttft: float
    gaps: list[float]
    prompt_tokens: int
    cached_tokens: int
    text: str


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of all rounds to the first token, of tokens in the prompt and of those cached."""

    engine: str
    saved: bool
    prompt_tokens: int
    cached_tokens: int
    ttft: list[float]
    first_read: list[float]
    stop: list[float]
    file_bytes: int


@contextmanager
def serving(backend: str, path: Path, options: dict[str, Any], kv: Path | None) -> Iterator[str]:
    """The URL of `enginebay serve`, until the block ends."""
    port = servers.free_port()
    command = enginebay(backend, path, options, port)
    config = Path(command[-1])
    written = json.loads(config.read_text(encoding="utf-8"))
    written["server"] |= {"auth": "none", "usage_file": "off"}
    if kv:
        written["loading"] = {"cache_dir": str(kv)}
    config.write_text(json.dumps(written), encoding="utf-8")
    log = environments.FOLDER / f"restart-{backend}.log"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        servers.wait_until_healthy(process, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}"
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def ask(url: str, prompt: list[int], tokens: int = _ANSWER) -> Turn:
    """One streamed, greedy answer."""
    body = {
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    began = time.perf_counter()
    arrivals, text, usage = [], "", {}
    with urllib.request.urlopen(request, timeout=600) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line.removeprefix(b"data: "))
            usage = event.get("usage") or usage
            if piece := "".join(choice["text"] for choice in event["choices"]):
                arrivals.append(time.perf_counter())
                text += piece
    gaps = [after - before for before, after in itertools.pairwise(arrivals)]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Turn(arrivals[0] - began, gaps, usage["prompt_tokens"], cached, text)


def measure(
    engine: str, path: Path, options: dict[str, Any], tokens: int, rounds: int
) -> Iterator[Result]:
    """With saved KV and without, by turns."""
    draw = random.Random(0)
    prompt = [draw.randrange(100, 2000) for _ in range(tokens)]
    short = [draw.randrange(100, 2000) for _ in range(16)]
    turns: dict[bool, list[tuple[Turn, Turn, float, int]]] = {True: [], False: []}
    for number in range(rounds):
        for saved in (True, False) if number % 2 else (False, True):
            kv = Path(tempfile.mkdtemp(prefix="kv-", dir=environments.FOLDER))
            try:
                with serving(engine, path, options, kv if saved else None) as url:
                    ask(url, short, 4)
                    first = ask(url, prompt)
                    stopping = time.perf_counter()
                stopped = time.perf_counter() - stopping
                size = sum(file.stat().st_size for file in kv.rglob("*.kv"))
                with serving(engine, path, options, kv if saved else None) as url:
                    ask(url, short, 4)
                    following = [draw.randrange(100, 2000) for _ in range(_NEW_TOKENS)]
                    second = ask(url, [*prompt, *following])
            finally:
                shutil.rmtree(kv)
            turns[saved].append((first, second, stopped, size))
    for saved, seen in turns.items():
        yield Result(
            engine=engine,
            saved=saved,
            prompt_tokens=seen[-1][1].prompt_tokens,
            cached_tokens=min(second.cached_tokens for _, second, _, _ in seen),
            ttft=[second.ttft for _, second, _, _ in seen],
            first_read=[first.ttft for first, _, _, _ in seen],
            stop=[stopped for _, _, stopped, _ in seen],
            file_bytes=seen[-1][3],
        )


def table(results: list[Result]) -> str:
    """The results in Markdown."""
    lines = [
        "| engine | saved | prompt | cached | first token (median, range) | ratio | file | stop |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    without = {r.engine: statistics.median(r.ttft) for r in results if not r.saved}
    for result in results:
        median = statistics.median(result.ttft)
        lines.append(
            f"| {result.engine} | {'yes' if result.saved else 'no'} | {result.prompt_tokens} "
            f"| {result.cached_tokens} | {median * 1000:.0f} ms ({min(result.ttft) * 1000:.0f} to "
            f"{max(result.ttft) * 1000:.0f}) | {median / without[result.engine]:.3f} "
            f"| {result.file_bytes / 2**20:.0f} MiB | {statistics.median(result.stop):.1f} s |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", default="hf,llamacpp")
    parser.add_argument("--model", default="100m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    environments.FOLDER.mkdir(exist_ok=True)
    model = models.find(asked.model, asked.dtype)
    options = {"threads": asked.threads, "max_batch_size": 4, "context_length": asked.tokens + 512}
    results: list[Result] = []
    for engine in asked.engines.split(","):
        if engine == "llamacpp":
            models.ensure_gguf(model)
            path, more = model.gguf, {}
        else:
            path, more = model.folder, {"dtype": asked.dtype, "device": "cpu"}
        results += measure(engine, path, {**options, **more}, asked.tokens, asked.rounds)
    print(table(results))
    if asked.output:
        asked.output.write_text(json.dumps([asdict(each) for each in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
