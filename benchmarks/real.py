"""A published model on this machine with default settings, next to its peers in the same run.

    python3 start.py python benchmarks/real.py
    python3 start.py python benchmarks/real.py --engines llamacpp --rounds 5
    python3 start.py python benchmarks/real.py --model 1b

Gemma 3 270M comes from the package index (`tests/real/artifacts.py`). `1b` has random weights, the
shapes of Llama 3.2 1B and Qwen's real vocabulary of 151,936 tokens: bfloat16, and Q8_0 as GGUF.
Each server first starts alone: the time from the start of its process to the end of its first
answer, and the memory of its processes after this answer. Then the servers take turns under the
same load, as in `peers.py`. The peers are llama.cpp's own server with 4 slots, from the package
xllamacpp, for llamacpp, and `transformers serve` and `generate()` for hf.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import environments, report
from benchmarks.load import answer, burst
from benchmarks.models import Model
from benchmarks.peer_commands import EXACT_LENGTH, PEERS
from benchmarks.peers import Measured, show
from benchmarks.prompts import Prompts
from benchmarks.servers import Peer, Server, Settings, running

RESULTS = Path(__file__).parent / "results"
GENERATE = "generate()"
_CONTEXT = 32768
_FIRST_TOKENS = 24
_PROMPT_TOKENS = 32
_TEMPERATURES = {"llamacpp": 0.8, "hf": 0}

_LLAMA_SERVER = """
import sys, threading, xllamacpp
model, slots, context, threads, port = sys.argv[1:]
params = xllamacpp.CommonParams()
params.model.path = model
params.n_parallel, params.n_ctx, params.port = int(slots), int(context), int(port)
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
params.hostnames = ["127.0.0.1"]
server = xllamacpp.Server(params)
threading.Event().wait()
"""


def _model_folder(path: Path) -> Path:
    """The folder that holds a copy of the model alone, as a self-hoster would drop it."""
    models = environments.FOLDER / "real" / path.name
    models.mkdir(parents=True, exist_ok=True)
    copy = models / ("bench" if path.is_dir() else "bench.gguf")
    if not copy.exists():
        (shutil.copytree if path.is_dir() else shutil.copy)(path, copy)
    return models


def _enginebay(path: Path, port: int) -> list[str]:
    """Serve a model folder without any option of the model."""
    models = _model_folder(path)
    config = models.with_name(f"{path.name}.yml")
    server = {"port": port, "log_level": "warning", "model_dir": str(models)}
    config.write_text(json.dumps({"server": server}), encoding="utf-8")
    return [sys.executable, "-m", "enginebay.cli", "serve", "--config", str(config)]


def _llama_server(python: Path, settings: Settings, port: int) -> list[str]:
    numbers = (4, settings.context, settings.threads, port)
    return [str(python), "-c", _LLAMA_SERVER, str(settings.model.gguf), *map(str, numbers)]


def _path(model: Model, engine: str) -> Path:
    return model.folder if engine == "hf" else model.gguf


def peers(engine: str) -> list[Peer]:
    """The servers of an engine, Enginebay first."""
    ours = replace(
        PEERS[f"enginebay-{engine}"],
        command=lambda _, settings, port: _enginebay(_path(settings.model, engine), port),
    )
    if engine == "hf":
        found = [ours, PEERS["transformers"]]
    else:
        install = environments.xllamacpp
        found = [ours, Peer("llama-server", engine, install, _llama_server, EXACT_LENGTH)]
    body = {"temperature": _TEMPERATURES[engine], "seed": 7}
    return [replace(peer, body={**peer.body, **body}) for peer in found]


async def first_answer(peer: Peer, settings: Settings, prompt: str) -> report.Json:
    """Start a server: seconds until its first answer ends, and MiB of memory after it."""
    began = time.perf_counter()
    with running(peer, settings) as server:
        healthy = time.perf_counter() - began
        seen = await answer(server, prompt, _FIRST_TOKENS)
        return {
            "healthy_seconds": round(healthy, 2),
            "first_token_seconds": round(seen.arrivals[0] - began, 2),
            "answer_seconds": round(seen.arrivals[-1] - began, 2),
            "mib": server.resident_bytes() >> 20,
        }


async def measure_load(
    plan: argparse.Namespace, engine: str, settings: Settings, prompts: Prompts
) -> Measured:
    """Bursts of all servers of an engine in turn, in every round."""
    measured = Measured()
    with contextlib.ExitStack() as stack:
        servers: list[Server] = []
        for peer in peers(engine):
            with measured.failing(peer.name):
                server = stack.enter_context(running(peer, _settings_of(settings, peer)))
                await burst(server, 2, prompts.make(2, _PROMPT_TOKENS, "warm-up"), 8)
                servers.append(server)
                server.pause()
        for number in range(plan.rounds):
            for streams in plan.streams:
                texts = prompts.make(max(streams, 2), _PROMPT_TOKENS, f"{number} {streams}")
                turn = number % len(servers)
                for server in [*servers[turn:], *servers[:turn]]:
                    name = server.peer.name
                    with measured.failing(name), server.awake():
                        seen = (await burst(server, streams, texts, plan.tokens)).summary()
                        measured.bursts.setdefault(name, []).append(seen)
                        show(number, name, seen)
                if engine == "hf":
                    with measured.failing(GENERATE):
                        seen = generated(settings, streams, plan.tokens)
                        measured.limits.setdefault(GENERATE, []).append(seen)
                        show(number, GENERATE, seen)
    return measured


def generated(settings: Settings, streams: int, tokens: int) -> report.Json:
    """Speed of transformers' `generate()` with a batch of `streams` prompts, in a new process."""
    python = environments.transformers()
    numbers = map(str, (streams, tokens, settings.threads))
    command = [str(python), "-m", "benchmarks.real", "--generate", str(settings.model.folder)]
    done = subprocess.run(
        [*command, *numbers], cwd=environments.ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    seen: report.Json = json.loads(done.stdout.splitlines()[-1])
    return seen


def generate_here(folder: str, streams: int, tokens: int, threads: int) -> report.Json:
    """Measure `generate()` in this process, without the time of the prompt."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    ids = torch.randint(1000, 5000, (streams, _PROMPT_TOKENS))

    def run(new: int) -> tuple[float, float]:
        began, cpu = time.perf_counter(), time.process_time()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
        )
        return time.perf_counter() - began, time.process_time() - cpu

    run(2)
    (short, short_cpu), (long, long_cpu) = run(1), run(tokens + 1)
    made = streams * tokens
    return {
        "streams": streams,
        "tokens_per_second": round(made / (long - short), 2),
        "tokens_per_cpu_second": round(made / (long_cpu - short_cpu), 2),
    }


def summary(results: report.Json) -> str:
    """Tables of first answers and of speeds."""
    rows = []
    for engine, measured in results["engines"].items():
        for name, starts in measured["starts"].items():
            cells = [
                report.number(statistics.median(start[key] for start in starts))
                for key in ("healthy_seconds", "first_token_seconds", "answer_seconds", "mib")
            ]
            rows.append([engine, name, *cells])
    head = ["engine", "server", "healthy s", "first token s", "first answer s", "MiB"]
    return report.markdown(head, rows) + "\n\n" + report.tables(results)


def find(name: str) -> Model:
    """The model called `gemma` or `1b`, downloaded or made if need be."""
    from tests.real import artifacts

    if name == "gemma":
        return Model("gemma-3-270m", artifacts.folder(), artifacts.gguf(), "auto")
    made = environments.FOLDER / "models" / "1b-151936"
    model = Model(name, made, made.with_suffix(".gguf"), "auto")
    if not model.gguf.exists():
        _make(made, artifacts.tokenizer("qwen3"), model.gguf)
    return model


def _make(folder: Path, tokenizer: Path, file: Path) -> None:
    """Write a model of random weights as a folder and as a GGUF file."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=151_936,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=_CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=151_645,
    )
    shutil.copytree(tokenizer, folder, dirs_exist_ok=True)
    settings = folder / "tokenizer_config.json"
    known = json.loads(settings.read_text(encoding="utf-8"))
    settings.write_text(json.dumps(known | {"bos_token": known["eos_token"]}), encoding="utf-8")
    model = LlamaForCausalLM(config)
    with tempfile.TemporaryDirectory(dir=folder.parent) as copy:  # numpy has no bfloat16
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        model.half().save_pretrained(copy)
        command = [sys.executable, "-m", "demo.to_gguf", copy, str(file), "--type", "q8_0"]
        subprocess.run(command, cwd=environments.ROOT, check=True)
    model.bfloat16().save_pretrained(folder)


async def measure(plan: argparse.Namespace, model: Model) -> None:
    """Measure everything, write the results, print their tables."""
    settings = Settings(model, plan.threads, slots=max(plan.streams), context=_CONTEXT)
    prompts = Prompts(model.folder)
    results: report.Json = {
        **report.machine(),
        "instructions": report.instructions(),
        "model": model.name,
        "threads": plan.threads,
        "tokens": plan.tokens,
        "rounds": plan.rounds,
        "temperatures": _TEMPERATURES,
        "versions": {},
        "engines": {},
    }
    for engine in plan.engines.split(","):
        starts: dict[str, list[report.Json]] = {}
        _model_folder(_path(model, engine))  # before any clock runs
        for number in range(plan.starts):
            for peer in peers(engine):
                peer.install()
                prompt = prompts.make(1, 9, f"first {number}")[0]
                seen = await first_answer(peer, _settings_of(settings, peer), prompt)
                starts.setdefault(peer.name, []).append(seen)
                print(peer.name, seen, flush=True)
        results["versions"] |= {peer.name: peer.versions() for peer in peers(engine)}
        measured = await measure_load(plan, engine, settings, prompts)
        results["engines"][engine] = {
            "starts": starts,
            "bursts": measured.bursts,
            "limits": measured.limits,
            "scenarios": {},
            "errors": measured.errors,
        }
        report.write(results, plan.output)
    print(summary(results))


def _settings_of(settings: Settings, peer: Peer) -> Settings:
    """Settings with short conversations for `transformers serve`, which allocates all of them."""
    return replace(settings, context=1024) if peer.name == "transformers" else settings


def main() -> None:
    """Command line entry."""
    if sys.argv[1:2] == ["--generate"]:
        folder, *numbers = sys.argv[2:]
        print(json.dumps(generate_here(folder, *map(int, numbers))))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engines", default="llamacpp,hf")
    parser.add_argument("--model", choices=["gemma", "1b"], default="gemma")
    parser.add_argument("--streams", default="1,4,16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=report.usable_cores())
    parser.add_argument("--output", type=Path, help="default: results/real-MODEL.json")
    plan = parser.parse_args()
    plan.streams = [int(number) for number in plan.streams.split(",")]
    plan.output = plan.output or RESULTS / f"real-{plan.model}.json"
    asyncio.run(measure(plan, find(plan.model)))


if __name__ == "__main__":
    main()
