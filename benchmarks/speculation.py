"""What do drafts gain where a text repeats, and what do they cost where it does not?

    python benchmarks/speculation.py --backend hf

Two engines of one model, one without drafts and one with, answer the same requests in turn, round
by round, in this process on one thread. `none`: neither has any. `edit`: the model's own greedy
answer is given as the `prediction`, with every 20th token changed. `quote`: greedy answers of
random weights, which soon go round, by prompt lookup. `fresh`: sampled ones, in which nothing comes
again, by prompt lookup.
`draft`: a draft model that is right, the first two layers of a model of which the others change
nothing. `draft wrong`: one that is always wrong. CPU time per token, and what the engine itself
decides by is CPU time, so that other programs do not matter (--wall: the time that passes).

Results go to `results/speculation-BACKEND.json` (`--output`), from there into the documentation:

    python benchmarks/report.py --drafts benchmarks/results/speculation-*.json \\
        --into docs/internals/benchmarks.md
"""

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import models, report
from enginebay import BackendSettings, GenerationRequest
from enginebay.contract.errors import ServingError
from enginebay.contract.sampling_params import SamplingParams
from enginebay.engine.batching.engine import BatchingEngine
from enginebay.engine.batching.speculation import Speculation

_TOKENS = 96
_PROMPT = 64
_TRUE_LAYERS = 2


@dataclass(frozen=True, slots=True)
class Case:
    """What one of the two engines has and the other has not."""

    name: str
    options: dict[str, Any]
    temperature: float = 0.0
    predicts: bool = False
    shallow: bool = False


def cases(draft: dict[str, str]) -> list[Case]:
    """All of them; `draft`: paths of draft models by what they are."""
    return [
        Case("none", {}),
        Case("edit", {}, predicts=True),
        Case("quote", {"prompt_lookup": 8}),
        Case("fresh", {"prompt_lookup": 8}, temperature=1.0),
        Case("draft", {"draft_model": draft["right"]}, shallow=True),
        Case("draft wrong", {"draft_model": draft["wrong"]}, shallow=True),
    ]


def load(backend: str, path: Path, clock: Callable[[], float], **options: Any) -> Any:
    """An engine on one thread that decides by this clock."""
    settings = BackendSettings(name="m", path=str(path), options=None)
    options = {"threads": 1, "context_length": 1024, "max_batch_size": 16, **options}
    if backend == "hf":
        from enginebay_hf.loading import load_engine as load_hf
        from enginebay_hf.options import HFOptions

        options = {"device": "cpu", "dtype": "float32", **options}
        engine: Any = load_hf(replace(settings, options=HFOptions(**options)))
    else:
        from enginebay_llamacpp.loading import load_engine as load_llamacpp
        from enginebay_llamacpp.options import LlamaCppOptions

        engine = load_llamacpp(replace(settings, options=LlamaCppOptions(**options)))
    divider = engine._scheduler._divider
    divider._clock = clock
    divider._speculation = Speculation(clock, even=engine._runner.memory.even)
    return engine


def asked(number: int, case: Case, predicted: Sequence[int] = ()) -> GenerationRequest:
    """A request with a prompt of its own."""
    sampling = SamplingParams(
        max_tokens=_TOKENS, temperature=case.temperature, ignore_eos=True, seed=number
    )
    prompt = tuple(300 + (number * 7919 + place * 104729) % 2600 for place in range(_PROMPT))
    return GenerationRequest(
        request_id=f"r{number}",
        prompt_token_ids=prompt,
        sampling=sampling,
        predicted_token_ids=tuple(predicted),
    )


def answered(
    engine: BatchingEngine[Any, Any], requests: Sequence[GenerationRequest]
) -> dict[str, list[int]]:
    """The tokens of each."""
    found: dict[str, list[int]] = {request.request_id: [] for request in requests}
    left = len(requests)
    for request in requests:
        engine.add_request(request)
    while left:
        for request_id, delta in engine.step():
            if isinstance(delta, ServingError):
                raise delta
            found[request_id] += delta.token_ids
            left -= delta.finish_reason is not None
    return found


def measured(case: Case, plain: Any, drafting: Any, streams: int, rounds: int) -> dict[str, Any]:
    """CPU (or wall) time without drafts beside that with them, the median of all rounds."""
    ratios: list[float] = []
    drafted = accepted = others = 0
    for turn in range(rounds + 1):
        numbers = range(100 * streams + turn * streams, 100 * streams + (turn + 1) * streams)
        requests = [asked(number, case) for number in numbers]
        times, texts = [], []
        started = CLOCK()
        texts.append(answered(plain, requests))
        times.append(CLOCK() - started)
        if case.predicts:
            requests = [
                replace(each, predicted_token_ids=edited(texts[0][each.request_id]))
                for each in requests
            ]
        before = drafting.stats()
        started = CLOCK()
        texts.append(answered(drafting, requests))
        times.append(CLOCK() - started)
        after = drafting.stats()
        others += sum(texts[0][each] != texts[1][each] for each in texts[0])
        if turn:  # the first is for learning
            ratios.append(times[0] / times[1])
            drafted += (after.drafted or 0) - (before.drafted or 0)
            accepted += (after.accepted or 0) - (before.accepted or 0)
    return {
        "case": case.name,
        "streams": streams,
        "ratio": round(statistics.median(ratios), 3),  # tokens per second, to those without
        "ratios": [round(ratio, 3) for ratio in ratios],
        "drafted per token": round(drafted / rounds / streams / _TOKENS, 2),
        "accepted": round(accepted / drafted, 2) if drafted else None,
        "other texts": others,
    }


def edited(token_ids: Sequence[int]) -> tuple[int, ...]:
    """What a client might have expected: every 20th token is another."""
    return tuple(
        token_id + 1 if at % 20 == 10 else token_id for at, token_id in enumerate(token_ids)
    )


def shallow(model: models.Model) -> tuple[models.Model, models.Model]:
    """A model of which all but the first layers change nothing, and these layers alone."""
    from safetensors.torch import load_file, save_file

    folder = model.folder.with_name(f"{model.name}-shallow")
    first = model.folder.with_name(f"{model.name}-first")
    if not (first / "model.safetensors").exists():
        for target in (folder, first):
            shutil.copytree(model.folder, target, dirs_exist_ok=True)
        weights = load_file(model.folder / "model.safetensors")
        for name in [name for name in weights if ".layers." in name]:
            adds = "o_proj" in name or "down_proj" in name
            if adds and int(name.split(".")[2]) >= _TRUE_LAYERS:
                weights[name] = weights[name] * 0
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        few = {
            name: weight
            for name, weight in weights.items()
            if ".layers." not in name or int(name.split(".")[2]) < _TRUE_LAYERS
        }
        config = json.loads((first / "config.json").read_text("utf-8"))
        config["num_hidden_layers"] = _TRUE_LAYERS
        (first / "config.json").write_text(json.dumps(config), "utf-8")
        save_file(few, first / "model.safetensors", {"format": "pt"})
    return models.find(str(folder), model.dtype), models.find(str(first), model.dtype)


def main() -> None:
    global CLOCK
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", choices=["hf", "llamacpp"], default="hf")
    parser.add_argument("--model", default="100m")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--cases", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    CLOCK = time.perf_counter if arguments.wall else time.process_time
    model = models.find(arguments.model, "float32")
    deep, first = shallow(model)
    wrong = models.find("demo", "float32")
    if arguments.backend == "llamacpp":
        for each in (model, deep, first, wrong):
            models.ensure_gguf(each)
    paths = {
        each.name: each.folder if arguments.backend == "hf" else each.gguf
        for each in (model, deep, first, wrong)
    }
    output = arguments.output or (
        Path(__file__).parent / "results" / f"speculation-{arguments.backend}.json"
    )
    results: dict[str, Any] = {
        "backend": arguments.backend,
        "model": arguments.model,
        "clock": "wall" if arguments.wall else "CPU",
        "rounds": arguments.rounds,
        "machine": report.machine(),
        "measured": [],
    }
    draft = {"right": str(paths[first.name]), "wrong": str(paths[wrong.name])}
    for case in cases(draft):
        if arguments.cases and case.name not in arguments.cases:
            continue
        path = paths[deep.name if case.shallow else model.name]
        plain = load(arguments.backend, path, CLOCK)
        drafting = load(arguments.backend, path, CLOCK, **case.options)
        for streams in arguments.streams:
            row = measured(case, plain, drafting, streams, arguments.rounds)
            print(json.dumps(row), flush=True)
            results["measured"].append(row)
            report.write(results, output)
        plain.close()
        drafting.close()


CLOCK: Callable[[], float] = time.process_time


if __name__ == "__main__":
    main()
