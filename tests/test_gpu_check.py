"""The GPU check by itself, without a GPU: it compares, records, reports and prepares rightly."""

import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from benchmarks.gpu import (
    check,
    checks,
    engines,
    gptq,
    machine,
    prepare,
    processes,
    recording,
    results,
    stages,
    throughput,
    throughput_table,
)
from benchmarks.gpu.processes import Ended, Processes
from benchmarks.gpu.recording import Line, read
from benchmarks.gpu.results import Results
from benchmarks.gpu.stages import Stage
from benchmarks.gpu.unpack import unpack
from benchmarks.models import Model
from enginebay.plugins import Plugins
from tests.gpu import answers
from tests.gpu.parity import Continuation, Reference
from tests.gpu.targets import FIRST, MAIN, VARIANTS, Target
from tests.support import DEMO_MODEL, REPOSITORY

# Comparing texts.

PIECES = ["The", " train", " went", " up", "."]
MARGINS = [4.0, 0.02, 3.0, 0.01, 5.0]


def said(*, complete: bool = True) -> Continuation:
    texts = ["".join(PIECES[: i + 1]) for i in range(len(PIECES))]
    margins = [*MARGINS, 0.03] if complete else MARGINS
    return Continuation([1], [10, 11, 12, 13, 14], texts, [0.0] * 5, margins, complete)


def test_the_same_text_agrees() -> None:
    assert said().agreement("The train went up.", 0.0) == 5
    assert said().token_agreement([10, 11, 12, 13, 14], 0.0) == 5


@pytest.mark.parametrize(
    ("text", "same"),
    [("The trail goes", 1), ("The train went down.", 3), ("The train went up. And", 5), ("The", 1)],
)
def test_a_text_may_leave_where_the_reference_was_unsure(text: str, same: int) -> None:
    assert said().agreement(text, 0.05) == same
    with pytest.raises(AssertionError, match=f"sure of token {same} "):
        said().agreement(text, 0.005)


@pytest.mark.parametrize(
    "text", ["A train went up.", "The train goes up.", "The train went up!", ""]
)
def test_a_text_may_not_leave_where_the_reference_was_sure(text: str) -> None:
    with pytest.raises(AssertionError, match="the reference was sure"):
        said().agreement(text, 0.05)


def test_nothing_is_known_of_what_comes_behind_a_cut() -> None:
    with pytest.raises(AssertionError, match="the reference ended here"):
        said(complete=False).agreement("The train went up. And", 9.0)


@given(st.lists(st.integers(8, 16), max_size=8))
def test_token_ids_agree_as_far_as_they_are_the_same(token_ids: list[int]) -> None:
    expected = said()
    pairs = zip(token_ids, expected.token_ids, strict=False)
    same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
    if token_ids == expected.token_ids or expected.margins[same] <= 0.05:
        assert expected.token_agreement(token_ids, 0.05) == same
    else:
        with pytest.raises(AssertionError, match="the reference was sure"):
            expected.token_agreement(token_ids, 0.05)


# A 4-bit copy.


def unpack_ints(packed: torch.Tensor, dim: int) -> torch.Tensor:
    """As a GPTQ kernel reads them."""
    shifts = torch.arange(8) * 4
    nibbles = (packed.movedim(dim, -1)[..., None] >> shifts) & 15
    return nibbles.flatten(-2).movedim(-1, dim)


@given(st.integers(0, 1000), st.sampled_from([32, 64]), st.floats(-1, 1))
def test_what_is_packed_stands_for_the_weights(seed: int, group_size: int, shift: float) -> None:
    weight = torch.randn(96, 128, generator=torch.Generator().manual_seed(seed)) + shift
    made = gptq.quantize(weight, group_size)
    tensors = made.tensors()
    steps, zeros = unpack_ints(tensors["qweight"], 0), unpack_ints(tensors["qzeros"], 1) + 1
    groups = tensors["g_idx"].long()
    read_back = (steps - zeros[groups]) * tensors["scales"].float()[groups]
    assert torch.equal(read_back.T, made.weight)
    assert tensors["qweight"].dtype == tensors["qzeros"].dtype == torch.int32
    step = made.scales[groups].T  # half of it for rounding, half as zero is rounded, too
    assert ((made.weight - weight).abs() <= step * 1.01).all()


def test_a_weight_must_go_into_groups() -> None:
    with pytest.raises(ValueError, match="96 x 100 has no groups of 64"):
        gptq.quantize(torch.zeros(96, 100), 64)


# What tests leave.

TESTS = """
import os, pytest

def test_good(record_property):
    record_property("distance", 0.25)

@pytest.mark.parametrize("x", [1])
def test_bad(x):
    assert x == 2, "one is not two"

def test_skipped():
    pytest.skip("no such engine")

@pytest.fixture
def broken():
    raise RuntimeError("it did not load")

def test_not_begun(broken):
    pass

def test_crash():
    os._exit(3)

def test_never_reached():
    pass
"""


def recorded(folder: Path, source: str, *arguments: str) -> tuple[int, list[Line]]:
    (folder / "test_it.py").write_text(source)
    lines = folder / "lines"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:cov"]
    command += ["-p", "benchmarks.gpu.recording", "--record", str(lines), *arguments, "test_it.py"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    return done.returncode, read(lines)


def test_a_crash_leaves_what_was_before_it(tmp_path: Path) -> None:
    code, lines = recorded(tmp_path, TESTS)
    assert code == 3
    assert [line["test"] for line in lines] == [
        "test_it.py::test_good",
        "test_it.py::test_bad[1]",
        "test_it.py::test_skipped",
        "test_it.py::test_not_begun",
    ]
    good, bad, skipped, not_begun = lines
    assert (good["outcome"], good["figures"]) == ("passed", {"distance": 0.25})
    assert bad["outcome"] == not_begun["outcome"] == "failed"
    assert "one is not two" in bad["reason"]
    assert (skipped["outcome"], skipped["reason"]) == ("skipped", "no such engine")
    assert not_begun["reason"] == "in setup: RuntimeError: it did not load"


def test_a_file_that_cannot_be_imported_has_failed(tmp_path: Path) -> None:
    code, [line] = recorded(tmp_path, "import no_such_module")
    assert code == 2
    assert line["outcome"] == "failed"
    assert "no_such_module" in line["reason"]


def test_half_a_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text('{"test": "a"}\n{"test": "b", "fig')
    assert read(tmp_path / "lines") == [{"test": "a"}]
    assert read(tmp_path / "none") == []


TARGETS = """
import pytest
from time import perf_counter
from types import SimpleNamespace

@pytest.mark.parametrize("target", [SimpleNamespace(name="a"), SimpleNamespace(name="b")])
@pytest.mark.parametrize("x", [1, 2])
def test_of_targets(target, x):
    pass

def test_of_none():
    pass
"""


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("a", ["test_it.py::test_of_targets[1-target0]", "test_it.py::test_of_targets[2-target0]"]),
        ("", ["test_it.py::test_of_none"]),
        ("c", []),
    ],
)
def test_only_tests_of_the_target_run(tmp_path: Path, target: str, expected: list[str]) -> None:
    assert [line["test"] for line in recorded(tmp_path, TARGETS, "--target", target)[1]] == expected


def test_what_has_passed_is_not_run_again(tmp_path: Path) -> None:
    passed = tmp_path / "passed"
    recording.write(passed, "test_it.py::test_of_targets[1-target0]", "passed")
    _, lines = recorded(tmp_path, TARGETS, "--target", "a", "--passed", str(passed))
    assert [line["test"] for line in lines] == ["test_it.py::test_of_targets[2-target0]"]


@pytest.mark.thorough
@pytest.mark.skipif(engines.missing("llamacpp", "cpu") is not None, reason="needs llama.cpp")
def test_the_first_checks_of_an_engine_are_rehearsed(tmp_path: Path) -> None:
    arguments = ["--rehearse", "--engines", "llamacpp", "--stages", "first"]
    assert check.main([*arguments, "--output", str(tmp_path)]) == 0
    found = json.loads((tmp_path / results.NAME).read_text())["stages"]["llamacpp first"]
    assert [line["outcome"] for line in found["tests"]] == ["passed"] * 4
    assert check.main([*arguments, "--output", str(tmp_path)]) == 0  # it is known


def test_all_tests_on_a_gpu_are_run() -> None:
    marked = {
        file.relative_to(REPOSITORY).as_posix()
        for file in (REPOSITORY / "tests").rglob("test_*.py")
        if "pytest.mark.gpu" in file.read_text("utf-8")
    }
    assert {file for file in marked if not file.startswith(checks.TESTS)} == {
        "tests/test_gpu_check.py"  # this one
    }


def test_all_targets_are_checked_in_full() -> None:
    for engine in engines.ENGINES:
        targets = [target.name for target in MAIN + VARIANTS if target.engine == engine]
        assert sorted(stages.FULL[engine]) == sorted(targets)
    assert [target.engine for target in FIRST] == list(engines.ENGINES)


# Stages.


class Clock:
    """Time that goes on only when it is looked at, by `step` seconds, or when it is told to."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 1000.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


WRITES = """
import json, sys
def write(test, outcome="passed", reason=""):
    line = {"test": test, "outcome": outcome, "reason": reason, "seconds": 0.0, "figures": {}}
    with open(sys.argv[1], "a") as file:
        file.write(json.dumps(line) + "\\n")
"""


def python(code: str) -> Callable[[Path, Path, float], list[str]]:
    """A stage's command that runs this code, which has `write`."""
    return lambda record, passed, seconds: [sys.executable, "-c", WRITES + code, str(record)]


GOOD = python("write('one')")
CRASHES = python("write('one'); print('about to'); import os; os.kill(os.getpid(), 11)")
FAILS = python("write('one', 'failed', 'two is not one'); sys.exit(1)")
HANGS = python("write('one'); import threading; threading.Event().wait()")
# With a child in a session of its own; neither can be interrupted.
STUBBORN = python("""
import signal, subprocess, threading
signal.signal(signal.SIGINT, signal.SIG_IGN)
endless = "import threading; threading.Event().wait()"
child = subprocess.Popen([sys.executable, "-c", endless], start_new_session=True)
write(str(child.pid))
threading.Event().wait()
""")


def stage(
    name: str,
    command: Callable[[Path, Path, float], list[str]] = GOOD,
    *,
    kind: stages.Kind = "full",
    least: float = 1,
    limit: float = 100,
) -> Stage:
    engine = name.partition(" ")[0]
    return Stage(name, kind, None if engine == "facts" else engine, least, limit, command)


def run(
    folder: Path,
    *planned: Stage,
    budget: float = math.inf,
    clock: Callable[[], float] | None = None,
    state: str = "s",
    **options: Any,
) -> dict[str, Any]:
    """Run the stages as a new process of the check would; the stages in its file."""
    kept = Results(folder / results.NAME, **options)
    kept.describe()
    clock = clock or Clock()
    checking = check.Check(
        "cpu", folder, kept, budget, clock, Processes(clock, look=0.02, patience=0.02)
    )
    checking.run(planned, lambda engine: state)
    found: dict[str, Any] = json.loads((folder / results.NAME).read_text())["stages"]
    return found


def statuses(found: dict[str, Any]) -> dict[str, str]:
    return {name: stage["status"] for name, stage in found.items()}


needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="no signals")


@needs_signals
def test_a_stage_that_crashes_leaves_what_was_before_and_its_last_words(tmp_path: Path) -> None:
    found = run(tmp_path, stage("hf full", CRASHES), stage("hf more"), stage("llamacpp full"))
    assert statuses(found) == {"hf full": "crashed", "hf more": "passed", "llamacpp full": "passed"}
    assert found["hf full"]["reason"] == "ended by SIGSEGV, after one"
    assert [line["test"] for line in found["hf full"]["tests"]] == ["one"]
    assert found["hf full"]["log"] == ["about to"]
    assert "about to" in (tmp_path / "hf.log").read_text()
    assert found["llamacpp full"]["log"] == []


@needs_signals
def test_a_stage_that_hangs_is_killed_at_its_limit(tmp_path: Path) -> None:
    found = run(tmp_path, stage("hf full", HANGS), stage("hf more"), clock=Clock(step=30))
    assert statuses(found) == {"hf full": "timed out", "hf more": "passed"}
    assert found["hf full"]["reason"].startswith("was killed after 100 s")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes by /proc")
def test_nothing_of_a_killed_stage_is_left(tmp_path: Path) -> None:
    clock = Clock()
    kept = Results(tmp_path / results.NAME)
    record = tmp_path / "lines"

    def watch() -> None:
        if read(record):  # the child is there
            clock.now += 1000

    command = STUBBORN(record, record, 0)
    ended = Processes(clock, look=0.02, patience=0.02).run(
        command, tmp_path / "log", 100, {}, watch
    )
    assert ended == Ended(None, 1000)
    [line] = read(record)
    status = Path(f"/proc/{line['test']}/stat")
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"
    assert not kept.stages


@needs_signals
def test_an_engine_whose_first_checks_crash_loses_only_its_own_stages(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        stage("hf first", CRASHES, kind="first"),
        stage("llamacpp first", FAILS, kind="first"),
        stage("hf full"),
        stage("llamacpp full"),
    )
    assert statuses(found) == {
        "hf first": "crashed",
        "llamacpp first": "failed",
        "hf full": "skipped",
        "llamacpp full": "passed",
    }
    assert found["hf full"]["reason"] == "hf first crashed"
    assert found["llamacpp first"]["reason"] == "1 failed, the first: two is not one"


def test_an_engine_that_cannot_run_here_is_skipped_with_the_reason(tmp_path: Path) -> None:
    facts = python("write('hf', 'skipped', 'needs a CUDA device'); write('llamacpp')")
    found = run(
        tmp_path,
        stage("facts", facts, kind="facts"),
        stage("hf first", kind="first"),
        stage("llamacpp first", kind="first"),
        # Of which the facts were not found in time.
        stage("exllamav2 first", python("write('one', 'skipped', 'no device')"), kind="first"),
        stage("exllamav2 full"),
    )
    assert statuses(found) == {
        "facts": "passed",
        "hf first": "skipped",
        "llamacpp first": "passed",
        "exllamav2 first": "skipped",
        "exllamav2 full": "skipped",
    }
    assert found["hf first"]["reason"] == "needs a CUDA device"
    assert found["exllamav2 full"]["reason"] == "no device"


def test_no_model_is_made_where_no_engine_can_run(tmp_path: Path) -> None:
    facts = python("write('hf', 'skipped', 'needs a CUDA device'); write('torch')")
    making = Stage("model", "model", None, 1, 100, GOOD)
    planned = [stage("facts", facts, kind="facts"), stage("hf first", kind="first"), making]
    assert statuses(run(tmp_path, *planned))["model"] == "skipped"
    assert statuses(run(tmp_path, *planned, stage("llamacpp full")))["model"] == "passed"


def test_stages_for_which_no_time_is_left_are_not_run(tmp_path: Path) -> None:
    clock = Clock()

    def takes_long(record: Path, passed: Path, seconds: float) -> list[str]:
        clock.now += 60
        return GOOD(record, passed, seconds)

    found = run(
        tmp_path,
        stage("hf full", takes_long),
        stage("hf more", least=31),
        stage("hf last", least=30),
        budget=100,
        clock=clock,
    )
    assert statuses(found) == {"hf full": "passed", "hf more": "not run", "hf last": "passed"}
    assert found["hf more"]["reason"] == "needs 31 s, and 30 s of the budget are left"


@needs_signals
def test_a_stage_has_no_more_time_than_the_budget_and_is_then_cut_off(tmp_path: Path) -> None:
    given: list[float] = []

    def hangs(record: Path, passed: Path, seconds: float) -> list[str]:
        given.append(seconds)
        return HANGS(record, passed, seconds)

    found = run(tmp_path, stage("hf full", hangs), budget=70, clock=Clock(step=1))
    assert statuses(found) == {"hf full": "cut off"}
    assert given == [pytest.approx(60, abs=5)]


def counting(folder: Path, name: str, code: str) -> Stage:
    """A stage that leaves a mark each time it runs."""
    mark = f"open({str(folder / 'ran')!r}, 'a').write({name + chr(10)!r}); "
    return stage(name, python(mark + code))


def ran(folder: Path) -> list[str]:
    """The stages that ran, in order, since this was asked last."""
    file = folder / "ran"
    names = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return names


def test_the_next_run_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    bad = counting(tmp_path, "hf bad", "write('one', 'failed', 'no'); sys.exit(1)")
    good = counting(tmp_path, "hf good", "write('one')")
    late = counting(tmp_path, "hf late", "write('one')")
    planned = (bad, good, replace(late, least=1000))
    run(tmp_path, *planned, budget=100)
    assert ran(tmp_path) == ["hf bad", "hf good"]
    found = run(tmp_path, bad, good, late)
    assert ran(tmp_path) == ["hf late", "hf bad"]  # new ones come before those that failed
    assert statuses(found) == {"hf bad": "failed", "hf good": "passed", "hf late": "passed"}
    run(tmp_path, *planned, budget=100)
    assert ran(tmp_path) == ["hf bad"]
    run(tmp_path, good, late, state="another version")
    assert ran(tmp_path) == ["hf good", "hf late"]
    run(tmp_path, good, late, state="another version", again=True)
    assert ran(tmp_path) == ["hf good", "hf late"]


def test_a_run_goes_on_from_a_file_of_elsewhere(tmp_path: Path) -> None:
    before = tmp_path / "before"
    before.mkdir()
    run(before, stage("hf full"))
    there = tmp_path / "there"
    there.mkdir()
    found = run(there, counting(tmp_path, "hf full", ""), before=before / results.NAME)
    assert ran(tmp_path) == []
    assert statuses(found) == {"hf full": "passed"}


def test_a_killed_run_has_written_down_how_far_it_was(tmp_path: Path) -> None:
    """Killed in the middle of a stage: no code of the check runs anymore."""
    file = tmp_path / results.NAME
    seen: list[dict[str, Any]] = []

    def watching() -> float:  # the clock is looked at while the stage runs
        if file.exists():
            found = json.loads(file.read_text())["stages"]
            if len(found.get("hf full", {}).get("tests", [])) == 2:
                seen.append(found)
                clock.now += 1000
        return clock()

    clock = Clock()
    slow = python("write('one'); write('two'); import threading; threading.Event().wait()")
    run(tmp_path, stage("hf full", slow), clock=watching)
    at_the_kill = seen[0]
    assert statuses(at_the_kill) == {"hf full": "cut off"}
    file.write_text(json.dumps({"stages": at_the_kill}))
    known: list[str] = []

    def goes_on(record: Path, passed: Path, seconds: float) -> list[str]:
        known.extend(line["test"] for line in read(passed))
        return python("write('three')")(record, passed, seconds)

    found = run(tmp_path, stage("hf full", goes_on))
    assert known == ["one", "two"]
    assert [line["test"] for line in found["hf full"]["tests"]] == ["one", "two", "three"]
    assert statuses(found) == {"hf full": "passed"}


def test_a_half_written_file_never_replaces_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, stage("hf full"))
    kept = Results(tmp_path / results.NAME)

    def fails(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fails)
        with pytest.raises(KeyboardInterrupt):
            kept.describe(more="x")
    assert statuses(run(tmp_path, stage("hf full"))) == {"hf full": "passed"}


def line(outcome: recording.Outcome, reason: str = "") -> Line:
    return Line(test="t", outcome=outcome, reason=reason, seconds=0.0, figures={})


@needs_signals
@pytest.mark.parametrize(
    ("code", "lines", "cut", "status", "reason"),
    [
        (0, [line("passed"), line("skipped")], False, "passed", ""),
        (1, [line("passed"), line("failed", "no\nmore")], False, "failed", "the first: no"),
        (0, [line("passed"), line("failed", "no")], False, "failed", "1 failed"),
        (1, [], False, "failed", "wrote nothing down"),
        (0, [line("skipped", "needs a GPU")], False, "skipped", "needs a GPU"),
        (5, [], False, "skipped", "there were no tests"),
        (None, [line("passed")], False, "timed out", "killed after 9 s, after t"),
        (None, [line("passed")], True, "cut off", "killed after 9 s, after t"),
        (-11, [], False, "crashed", "SIGSEGV, before the first test ended"),
        (-99, [], False, "crashed", "signal 99"),
        (4, [], False, "crashed", "code 4"),
    ],
)
def test_verdicts(code: int | None, lines: list[Line], cut: bool, status: str, reason: str) -> None:
    verdict = stages.judge(Ended(code, 1.0), lines, 9, cut=cut)
    assert verdict.status == status
    assert reason in verdict.reason


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_plan_has_the_first_verdicts_of_all_engines_before_anything_else(
    device: engines.Device,
) -> None:
    planned = stages.plan(engines.ENGINES, device, "demo")
    kinds = [stage.kind for stage in planned]
    assert kinds == sorted(kinds, key=stages.KINDS.index)
    assert kinds[:4] == ["facts", "first", "first", "first"]
    assert planned[0].limit <= 30
    full = [stage.engine for stage in planned if stage.kind == "full"]
    assert full[:3] == list(engines.ENGINES)
    assert len({stage.name for stage in planned}) == len(planned)
    assert all(stage.least <= stage.limit for stage in planned)
    only = stages.plan(["hf"], device, "demo", ["first"])
    assert [stage.name for stage in only] == ["facts", "hf first"]


def test_a_change_of_one_engine_leaves_what_is_known_of_another(tmp_path: Path) -> None:
    for name in ("core/a.py", "backends/enginebay_hf/a.py", "backends/enginebay_exllamav2/a.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("1")

    def both(**about: Any) -> tuple[str, str]:
        return results.state("hf", about, tmp_path), results.state("exllamav2", about, tmp_path)

    before = both()
    assert before == both()
    assert before[0] != both(torch="2.11")[0]
    (tmp_path / "backends/enginebay_hf/a.py").write_text("2")
    after = both()
    assert after[0] != before[0]
    assert after[1] == before[1]
    (tmp_path / "core/a.py").write_text("2")
    assert both()[1] != before[1]


# What comes back from a machine: 8 files of 16 MiB each.

LARGEST, MOST_FILES = 16 * 2**20, 8


def test_a_log_that_floods_keeps_its_begin_and_end(tmp_path: Path) -> None:
    flood = python(f"""
sys.stdout.write("the begin\\n")
for _ in range(40):
    sys.stdout.write("x" * {2**20} + "\\n")
sys.stdout.write("the end\\n")
write('one')
""")
    found = run(tmp_path, stage("hf full", flood), stage("hf more"))
    assert statuses(found) == {"hf full": "passed", "hf more": "passed"}
    log = (tmp_path / "hf.log").read_text()
    assert log.startswith("the begin\n")
    assert "the middle was cut out" in log
    assert log.endswith("the end\n")
    assert (tmp_path / "hf.log").stat().st_size < LARGEST
    assert processes.LOG_BYTES < LARGEST


def test_all_stages_leave_no_more_files_than_come_back(tmp_path: Path) -> None:
    planned = stages.plan(engines.ENGINES, "cuda", "1b")
    found = run(tmp_path, *(replace(stage, command=GOOD) for stage in planned))
    assert set(statuses(found).values()) == {"passed"}
    there = [file.name for file in tmp_path.iterdir()]
    unfinished_and_of_run_sh = ["gpu-check.tmp", "run.log"]
    assert len(there + unfinished_and_of_run_sh) <= MOST_FILES


# What is missing.


@pytest.mark.parametrize("engine", engines.ENGINES)
def test_a_library_that_is_not_installed_is_named(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_has", lambda module: False)
    library = {"hf": "torch, transformers", "llamacpp": "llama_cpp"}.get(engine, "exllamav2, torch")
    reason = engines.missing(engine, "cuda")
    assert reason is not None
    assert reason.startswith(f"not installed: {library}")


def test_a_broken_library_is_for_the_checks_to_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)  # importing it is an ImportError
    monkeypatch.setattr(engines, "_has", lambda module: True)
    assert engines.missing("llamacpp", "cuda") is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_machine_without_cuda_says_so() -> None:
    assert "needs a CUDA device" in str(engines.missing("hf", "cuda"))
    assert engines.missing("hf", "cpu") is None


@pytest.mark.parametrize("target", MAIN + VARIANTS, ids=lambda target: target.name)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_backends_take_the_options_of_the_targets(target: Target, device: engines.Device) -> None:
    backends = Plugins().backends
    if target.engine not in backends:
        pytest.skip(f"there is no backend {target.engine}")
    validate = backends[target.engine].options
    assert validate is not None
    made = validate(**target.all_options(device))
    assert made.max_batch_size == 16
    assert all(getattr(made, name) == value for name, value in target.options.items())


# Facts.


def test_facts_are_found_in_processes_of_their_own(tmp_path: Path) -> None:
    for name in ("kernel", "driver"):
        machine.find(name, "cpu", tmp_path / "facts", perf_counter() + 300)
    kernel, driver = read(tmp_path / "facts")
    assert kernel["outcome"] == "passed"
    assert kernel["figures"]["largest difference"] == 0
    assert (driver["outcome"], driver["reason"]) == ("skipped", "a rehearsal needs no driver")
    assert machine.versions()["torch"] == torch.__version__


def test_a_fact_that_cannot_be_found_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(command: list[str], **options: Any) -> Any:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    def crashes(command: list[str], **options: Any) -> Any:
        return subprocess.CompletedProcess(command, -11, "", "a warning\nsymbol not found\n")

    for happens in (hangs, crashes):
        monkeypatch.setattr(subprocess, "run", happens)
        machine.find("hf", "cuda", tmp_path / "facts", 0)  # now is later
    first, second = read(tmp_path / "facts")
    assert (first["outcome"], first["reason"]) == ("failed", "took longer than 1 s")
    assert (second["outcome"], second["reason"]) == (
        "failed",
        "exit code -11\na warning\nsymbol not found",
    )
    assert machine.missing([first, second]) == {}  # the stages of the engine will tell


# The report.


def ended(status: stages.Status, kind: str = "full", *tests: Line, **more: Any) -> dict[str, Any]:
    about = {"kind": kind, "engine": None if kind == "facts" else "hf", "seconds": 1.0}
    return {**about, "status": status, "reason": "", "log": [], "tests": list(tests), **more}


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ({"a": ended("passed"), "b": ended("skipped"), "c": ended("not run")}, 0),
        ({"a": ended("passed"), "b": ended("cut off")}, 0),
        ({"a": ended("passed"), "b": ended("failed")}, 1),
        ({"a": ended("passed"), "b": ended("crashed")}, 1),
        ({"a": ended("passed"), "b": ended("timed out")}, 1),
        ({"a": ended("passed", "facts"), "b": ended("skipped")}, 1),
    ],
)
def test_the_exit_code_says_whether_all_is_well(found: dict[str, Any], code: int) -> None:
    assert results.exit_code(found, list(found)) == code


def test_the_summary_names_what_went_wrong_and_what_is_missing() -> None:
    found = {
        "hf first": ended("failed", "first", line("passed"), line("failed", "token 3 differs")),
        "hf full": ended("crashed", reason="ended by SIGSEGV", log=["CUDA error"]),
        "exllamav2 first": ended("skipped", "first", reason="not installed: exllamav2"),
    }
    text = results.summary(found, list(found))
    assert "| hf first | failed | 1 | 1 | 0 | 1.0 |" in text
    assert "| exllamav2 first | skipped: not installed: exllamav2 |" in text
    assert "hf first: t\ntoken 3 differs" in text
    assert "hf full: ended by SIGSEGV\n\nCUDA error" in text


# Answers that were computed before.


def test_the_reference_knows_answers_that_were_computed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "answers.json"
    kept = {"message": "Hello!", "tokens": 4, "answer": dataclasses.asdict(said())}
    file.write_text(json.dumps({"models": {answers.digest(DEMO_MODEL): [kept]}}))
    monkeypatch.setenv(answers.VARIABLE, str(file))
    reference = Reference(DEMO_MODEL)
    assert reference.answer("Hello!", 4) == said()
    assert reference.answer("Hello!", 3) != said()
    monkeypatch.setenv(answers.VARIABLE, str(tmp_path / "none"))
    assert Reference(DEMO_MODEL).answer("Hello!", 4) != said()


# Throughput.


class Fake:
    """Answers with the speeds that it is given, one a turn."""

    def __init__(self, *speeds: float, ways: tuple[str, ...] = ("free",)) -> None:
        self._speeds = list(speeds)
        self._ways = ways
        self.asked: list[list[str]] = []

    async def turn(self, prompts: Mapping[str, list[str]], tokens: int) -> dict[str, Any]:
        self.asked.append(prompts["free"])
        if not self._speeds:
            raise RuntimeError("it died")
        speed = self._speeds.pop(0)
        latency = {"p50": 1.0, "p99": 2.0}
        found = {
            "streams": len(prompts["free"]),
            "tokens_per_second": speed,
            "ttft_ms": latency,
            "inter_token_ms": latency,
        }
        return dict.fromkeys(self._ways, found)


async def test_an_engine_and_its_peer_take_turns_with_the_same_prompts_and_fail_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, peer = Fake(1, 300, 60, 400), Fake(1, 100, 20)
    monkeypatch.setattr(throughput, "running", _running)
    monkeypatch.setattr(throughput, "Served", lambda name: engine)
    monkeypatch.setattr(throughput, "Library", lambda peer_of_engine: peer)
    monkeypatch.setattr(throughput.baseline, "peers", lambda *_: [SimpleNamespace(name="peer")])
    model = Model("m", REPOSITORY / "demo" / "model", Path("m.gguf"), "float32")
    plan = throughput.Plan(math.inf, streams=[2], rounds=3, tokens=4)
    record = tmp_path / "lines"
    await throughput.measure("hf", "cpu", model, plan, record)
    lines = read(record)
    assert [line["reason"] for line in lines if line["outcome"] == "failed"] == [
        "RuntimeError: it died"
    ]
    assert engine.asked[:3] == peer.asked[:3]
    assert engine.asked[1] != engine.asked[2]
    table = throughput_table.table(lines)
    assert "| enginebay-hf, free | 2 | 300 | 3.00 |  | 1 | 2 | 1 | 2 |" in table
    assert "| peer, free | 2 | 60 |  |  | 1 | 2 | 1 | 2 |" in table


@pytest.mark.parametrize(("seconds", "rounds"), [(75, [0, 1]), (15, [])])
async def test_no_round_begins_that_would_not_end_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, rounds: list[int]
) -> None:
    monkeypatch.setattr(throughput, "monotonic", Clock(step=10))  # it is looked at thrice a round
    monkeypatch.setattr(throughput, "running", _running)
    monkeypatch.setattr(throughput, "Served", lambda name: Fake(*range(1, 9)))
    monkeypatch.setattr(throughput.baseline, "peers", lambda *_: [])
    model = Model("m", REPOSITORY / "demo" / "model", Path("m.gguf"), "float32")
    plan = throughput.Plan(seconds, streams=[1], rounds=5, tokens=4)
    await throughput.measure("hf", "cpu", model, plan, tmp_path / "lines")
    assert [line["figures"]["round"] for line in read(tmp_path / "lines")] == rounds


class _running:
    """In place of a server: its engine's name."""

    def __init__(self, peer: Any, settings: Any) -> None:
        self._engine = peer.engine

    def __enter__(self) -> str:
        return str(self._engine)

    def __exit__(self, *error: object) -> None:
        pass


# What a machine without network gets.


def make_wheel(folder: Path, name: str, version: str, *requires: str) -> Path:
    file = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/__init__.py", f"VERSION = {version!r}\n" * 100)
        wheel.writestr(f"{info}/METADATA", "\n".join(metadata) + "\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return file


def carried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: dict[str, str | None], *wanted: str
) -> list[str]:
    """The wheels that would be downloaded, from an index of four packages."""
    index = {
        "app": (
            "2.0",
            ["lib>=1,<3", "extra-thing; extra == 'fast'", "winonly; sys_platform=='win32'"],
        ),
        "lib": ("2.5", ["torch"]),
        "extra-thing": ("1.0", ["lib<2.5"]),
    }

    def download(self: Any, name: str, requirement: Requirement) -> None:
        if outdated := self._got.pop(name, None):
            outdated.unlink()
        version, requires = index[name]
        older = not requirement.specifier.contains(version)
        made = make_wheel(
            self._folder, name.replace("-", "_"), "2.4" if older else version, *requires
        )
        self._got[name] = made

    monkeypatch.setattr(prepare.Wheels, "_download", download)
    folder = tmp_path / "wheels"
    folder.mkdir()
    prepare.Wheels(folder, "3.12", there).add(map(Requirement, wanted))
    return sorted(file.name.partition("-py3")[0] for file in folder.iterdir())


@pytest.mark.parametrize(
    ("wanted", "there", "expected"),
    [
        (["app"], {}, ["app-2.0", "lib-2.5"]),
        (["app"], {"lib": "2.0"}, ["app-2.0"]),
        (["app"], {"lib": None}, ["app-2.0"]),
        (["app"], {"lib": "3.1"}, ["app-2.0", "lib-2.5"]),
        (["app>=1"], {"app": "1.5"}, []),
        (["app>=2"], {"app": "1.5", "lib": "1.1"}, ["app-2.0"]),
        (["app[fast]"], {}, ["app-2.0", "extra_thing-1.0", "lib-2.4"]),
        (["lib", "app[fast]"], {}, ["app-2.0", "extra_thing-1.0", "lib-2.4"]),
        (["torch", "enginebay[hf]"], {}, []),
    ],
)
def test_only_what_is_needed_and_not_there_is_carried(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: list[str],
    there: dict[str, str | None],
    expected: list[str],
) -> None:
    assert carried(tmp_path, monkeypatch, there, *wanted) == expected


def test_the_requirements_are_those_of_the_project() -> None:
    names = {requirement.name for requirement in prepare.requirements()}
    assert {"fastapi", "transformers", "exllamav2", "pytest", "hypothesis", "psutil"} <= names


def test_lists_of_packages_may_have_versions(tmp_path: Path) -> None:
    file = tmp_path / "packages.txt"
    file.write_text("# pip list\nPyYAML==6.0\ntorch\nmine @ file:///x\n\n")
    assert prepare.read_packages(file) == {"pyyaml": "6.0", "torch": None, "mine": None}
    assert prepare.read_packages(None) == {}


def test_what_was_packed_is_installed_without_network(tmp_path: Path) -> None:
    wheels, folder, site = (tmp_path / name for name in ("wheels", "prepared", "site"))
    for made in (wheels, folder, folder / "libraries"):
        made.mkdir()
    make_wheel(wheels, "enginebay_toy", "1.5")
    make_wheel(wheels, "enginebay_other", "2.0", "enginebay_toy")
    prepare.pack(wheels, folder / "wheels.tar.xz")
    (folder / "libraries" / "toy_ext.so").write_bytes(b"native")
    (tmp_path / "__init__.py").write_text('__version__ = "0.3.36"\n')
    with tarfile.open(folder / "libraries" / "llama.tar.xz", "w:xz") as packed:
        packed.add(tmp_path / "__init__.py", "llama_cpp/__init__.py")
    (folder / "wheels.json").write_text("{}")
    unpack(folder, site)
    unpack(folder, site)  # has been done
    assert (site / "enginebay_toy" / "__init__.py").read_text().startswith("VERSION = '1.5'")
    assert (site / "enginebay_other-2.0.dist-info").is_dir()
    assert (site / "toy_ext.so").read_bytes() == b"native"
    [llama] = distributions(name="llama-cpp-python", path=[str(site)])
    assert llama.version == "0.3.36"  # which a library without its wheel does not say


def checkout(root: Path) -> None:
    """A repository with a file that has changed, one that is gone and one that is not tracked."""
    root.mkdir()
    for name in ("kept.py", "gone.py"):
        (root / name).write_text("old")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run(["git", "add", "."], cwd=root, check=True)
    (root / "kept.py").write_text("changed")
    (root / "gone.py").unlink()
    (root / "new.log").write_text("not tracked")


def prepared(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """What `prepare.py` returns, with a wheel, a library and answers that cost nothing."""
    root = folder / "checkout"
    if not root.exists():
        checkout(root)
    library = folder / "toy_ext.so"
    library.write_bytes(os.urandom(5000))

    def download(packed: Path, python: str, there: Mapping[str, str | None]) -> dict[str, int]:
        packed.write_bytes(b"wheels")
        return {"app-2.0.whl": 3000}

    monkeypatch.setattr(prepare, "ROOT", root)
    monkeypatch.setattr(prepare, "download", download)
    monkeypatch.setattr(prepare, "answers", lambda target: target.write_text("{}"))
    return prepare.main([str(folder / "out"), "--libraries", str(library), *arguments])


def test_too_much_to_carry_is_an_error_that_names_the_largest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepared(tmp_path, monkeypatch) == 0
    assert "largest" not in capsys.readouterr().out
    size = sum(file.stat().st_size for file in (tmp_path / "out").rglob("*")) / prepare.MIB
    assert prepared(tmp_path, monkeypatch, "--limit", str(size / 2)) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[-1].endswith(("kept.py", "tree.tar.xz", "answers.json", "wheels.json"))
    largest = next(at for at, line in enumerate(said) if line.startswith("Too large"))
    assert said[largest + 1].endswith("toy_ext.so")
    assert "MiB  app-2.0.whl" in "\n".join(said)


def test_the_archive_has_the_tracked_tree_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path, monkeypatch)
    (tmp_path / "checkout" / "kept.py").write_text("changed again")
    (tmp_path / "out" / "gpu-check.json").write_text("of an earlier run")
    prepared(tmp_path, monkeypatch, "--refresh", "--archive", str(tmp_path / "out.tar"))
    there = tmp_path / "there"
    for archive in (tmp_path / "out.tar", there / "out" / "tree.tar.xz"):
        with tarfile.open(archive) as packed:
            packed.extractall(there, filter="data")
    files = {file.relative_to(there).as_posix() for file in there.rglob("*") if file.is_file()}
    names = "run.sh wheels.tar.xz wheels.json answers.json libraries/toy_ext.so gpu-check.json"
    assert files == {"kept.py", "out/tree.tar.xz", *(f"out/{name}" for name in names.split())}
    assert (there / "kept.py").read_text() == "changed again"
