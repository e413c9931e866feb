"""What models take of memory, as estimated from their headers and as measured.

    python3 start.py python benchmarks/memory.py [--models FOLDER] [--only NAME]

Makes models of several shapes with random weights, loads each in a process of its own, fills its
KV cache with prompts, and compares the growth of the process's resident memory since the engine's
libraries were imported with the estimate, less its part `runtime`, which stands for these.
Prints a table in Markdown.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.memory_models import CHECKPOINTS, GGUF, write_checkpoint, write_gguf
from enginebay import BackendSettings, FreeMemory, GenerationRequest, SamplingParams, free_ram

OPTIONS = {"context_length": 1024, "max_batch_size": 4, "cache_tokens": 2048}
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes of RAM, without what the engine's libraries take; `parts` of the estimate."""

    estimated: int
    measured: int
    parts: dict[str, int]

    @property
    def error(self) -> float:
        """How much too high the estimate is, as a share of what was measured."""
        return self.estimated / self.measured - 1


def measure(backend: str, path: Path) -> Measured:
    """In a new process."""
    command = [sys.executable, "-m", "benchmarks.memory", "--measure", backend, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def measure_here(backend: str, path: Path) -> Measured:
    """In this process, which has done nothing else."""
    options: Any
    if backend == "llamacpp":
        from enginebay_llamacpp import estimate as llamacpp_estimate
        from enginebay_llamacpp.loading import load_engine as load_llamacpp
        from enginebay_llamacpp.options import LlamaCppOptions

        options, load, estimated = (
            LlamaCppOptions(kv_unified=True, **OPTIONS),  # type: ignore[arg-type]
            load_llamacpp,
            llamacpp_estimate.estimated,
        )
    else:
        from enginebay_hf import estimate as hf_estimate
        from enginebay_hf.loading import load_engine as load_hf
        from enginebay_hf.options import HFOptions

        options, load, estimated = HFOptions(**OPTIONS), load_hf, hf_estimate.estimated  # type: ignore[arg-type,assignment]
    settings = BackendSettings(name="m", path=str(path), base=str(path.parent), options=options)
    estimate = estimated(settings, FreeMemory(free_ram()))
    process = psutil.Process()
    before = process.memory_info().rss
    engine: Any = load(settings)
    most = process.memory_info().rss
    draw = random.Random(0)
    for number in range(OPTIONS["cache_tokens"] // OPTIONS["context_length"]):
        prompt = tuple(draw.randrange(2, 250) for _ in range(OPTIONS["context_length"] - 16))
        sampling = SamplingParams(max_tokens=8, ignore_eos=True)
        engine.add_request(
            GenerationRequest(request_id=str(number), prompt_token_ids=prompt, sampling=sampling)
        )
    while engine.stats().running or engine.stats().waiting:
        engine.step()
        most = max(most, process.memory_info().rss)
    parts = {part.name: part.ram for part in estimate.parts if part.name != "runtime"}
    return Measured(sum(parts.values()), most - before, parts)


def main() -> None:
    """Measure all, or one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, help="where the models are made, and kept")
    parser.add_argument("--only", help="the name of one")
    parser.add_argument("--measure", nargs=2, metavar=("BACKEND", "PATH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(asdict(measure_here(given.measure[0], Path(given.measure[1])))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.models or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        print("| engine | model | weights | estimated | measured | error |")
        print("| --- | --- | --- | --- | --- | --- |")
        for backend, shapes in (("llamacpp", GGUF), ("hf", CHECKPOINTS)):
            for shape in shapes:
                if given.only not in (None, shape.name):
                    continue
                if backend == "llamacpp":
                    path = write_gguf(shape, folder / f"{shape.name}.gguf")
                else:
                    path = write_checkpoint(shape, folder / shape.name)
                found = measure(backend, path)
                sizes = (found.parts["weights"], found.estimated, found.measured)
                row = [backend, shape.name, *(f"{size / _MIB:.0f} MiB" for size in sizes)]
                print("|", " | ".join([*row, f"{found.error:+.1%}"]), "|", flush=True)


if __name__ == "__main__":
    main()
