"""Check every engine on this machine's GPU, in stages, and write down what came of each.

    python3 start.py python benchmarks/gpu/check.py --budget 480
    python3 start.py python benchmarks/gpu/check.py --engines exllamav2 --stages first,full
    python3 start.py python benchmarks/gpu/check.py --rehearse      # all that works without a GPU

Facts about the machine; of each engine the first checks; the throughput of each next to its peer;
then all checks, until the budget ends. A stage is a process of its own that is killed at its limit.
The results file is written whenever a stage has something to say, and the next run goes on from
there: stages that passed are left out, those that have not had their time come first. The exit code
is 1 if a stage failed, crashed or timed out, or if no engine passed anything.
"""

import argparse
import json
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import report
from benchmarks.environments import FOLDER
from benchmarks.gpu import machine, results, stages
from benchmarks.gpu.engines import ENGINES, REHEARSAL, Device
from benchmarks.gpu.processes import ROOT, Processes, tail
from benchmarks.gpu.recording import Line, read
from benchmarks.gpu.results import Results
from benchmarks.gpu.stages import Stage, Verdict

_RESERVE = 10
"""Seconds of the budget that are kept for ending the last stage."""


@dataclass(frozen=True, slots=True)
class Check:
    """A run of the check: `device` is where, `folder` gets the results and logs."""

    device: Device
    folder: Path
    results: Results
    budget: float
    clock: Callable[[], float] = time.monotonic
    processes: Processes = field(default_factory=Processes)

    def run(self, planned: Sequence[Stage], states: Callable[[str | None], str]) -> None:
        """All stages for which there is time, each in turn."""
        deadline = self.clock() + self.budget - _RESERVE
        out: dict[str, str] = {}
        engines = {stage.engine for stage in planned} - {None}
        for stage in self._in_order(planned, states):
            state = states(stage.engine)
            left = deadline - self.clock()
            if stage.kind != "facts" and self.results.passed(stage, state):
                self._say(stage, "passed before")
            elif stage.engine in out:
                self._leave(stage, state, Verdict("skipped", out[stage.engine]))
            elif stage.kind == "model" and engines == set(out):
                self._leave(stage, state, Verdict("skipped", "no engine can run here"))
            elif left < stage.least:
                why = f"needs {stage.least:g} s, and {max(left, 0):.0f} s of the budget are left"
                self._leave(stage, state, Verdict("not run", why))
            else:
                verdict, lines = self._run(stage, state, min(stage.limit, left))
                if stage.kind == "facts":
                    out |= machine.missing(lines)
                elif stage.kind == "first" and verdict.status == "skipped":
                    out[str(stage.engine)] = verdict.reason
                elif stage.kind == "first" and verdict.status in ("crashed", "timed out"):
                    out[str(stage.engine)] = f"{stage.name} {verdict.status}"

    def _in_order(
        self, planned: Sequence[Stage], states: Callable[[str | None], str]
    ) -> list[Stage]:
        """Those first that have not had their time before."""
        return sorted(
            planned,
            key=lambda stage: (
                stage.kind != "facts" and self.results.tried(stage, states(stage.engine))
            ),
        )

    def _run(self, stage: Stage, state: str, limit: float) -> tuple[Verdict, list[Line]]:
        before = self.results.lines(stage, state) if stage.kind in ("first", "full") else []
        log = self.folder / f"{stage.engine or 'check'}.log"
        begin = log.stat().st_size if log.exists() else 0
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "PYTHONUNBUFFERED": "1",
            # Plugins of other projects on the machine are none of this check.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            **({REHEARSAL: "1"} if self.device == "cpu" else {}),
        }
        self._say(stage, f"runs for {limit:.0f} s at most")
        with tempfile.TemporaryDirectory() as temporary:
            record, passed = Path(temporary) / "lines", Path(temporary) / "passed"
            passed.write_text("".join(f"{json.dumps(line)}\n" for line in before), "utf-8")
            seen = 0

            def watch() -> None:
                nonlocal seen
                lines = read(record)
                if len(lines) > seen:
                    seen = len(lines)
                    self.results.begin(stage, state, before + lines)

            self.results.begin(stage, state, before)
            command = stage.command(record, passed, limit)
            ended = self.processes.run(command, log, limit, environment, watch)
            lines = before + read(record)
        verdict = stages.judge(ended, lines, limit, cut=limit < stage.limit)
        said = tail(log, begin)
        self.results.end(stage, state, verdict, ended.seconds, lines, said)
        counts = sum(line["outcome"] == "passed" for line in lines)
        self._say(
            stage, f"{verdict.status} in {ended.seconds:.1f} s, {counts} good", verdict.reason
        )
        return verdict, lines

    def _leave(self, stage: Stage, state: str, verdict: Verdict) -> None:
        self.results.leave(stage, state, verdict)
        self._say(stage, verdict.status, verdict.reason)

    def _say(self, stage: Stage, *words: str) -> None:
        print(f"{stage.name}: {': '.join(filter(None, words))}", flush=True)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds for all stages")
    parser.add_argument("--engines", default=",".join(ENGINES), help="of hf,llamacpp,exllamav2")
    parser.add_argument("--stages", default=",".join(stages.KINDS[1:]), help="of these kinds")
    parser.add_argument("--again", action="store_true", help="forget what passed before")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU")
    parser.add_argument("--model", help="demo, 100m, 1b or a Llama's folder [1b; demo to rehearse]")
    parser.add_argument("--output", type=Path, help="folder for results [benchmarks/.peers/gpu]")
    parser.add_argument("--before", type=Path, help="results of an earlier run to go on from")
    options = parser.parse_args(arguments)
    options.engines = options.engines.split(",")
    options.stages = options.stages.split(",")
    for chosen, known in ((options.engines, ENGINES), (options.stages, stages.KINDS)):
        if unknown := set(chosen) - set(known):
            parser.error(f"not known: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return options


def main(arguments: list[str]) -> int:
    """The exit code."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends the running stage, too
    device: Device = "cpu" if options.rehearse else "cuda"
    folder = options.output or FOLDER / ("gpu-rehearsal" if options.rehearse else "gpu")
    folder.mkdir(parents=True, exist_ok=True)
    kept = Results(folder / results.NAME, options.before, again=options.again)
    about = {"versions": machine.versions(), "devices": machine.devices(), "device": device}
    kept.describe(machine=report.machine(), rehearsal=options.rehearse, **about)
    model = options.model or ("demo", "1b")[device == "cuda"]
    planned = stages.plan(options.engines, device, model, options.stages)
    states = {engine: results.state(engine, about) for engine in (None, *options.engines)}
    check = Check(device, folder, kept, options.budget)
    check.run(planned, states.__getitem__)
    names = [stage.name for stage in planned]
    print(f"\n{results.summary(kept.stages, names)}\n\nAll of it: {kept.file}")
    return results.exit_code(kept.stages, names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
