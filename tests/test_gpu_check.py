"""The GPU check by itself, without a GPU: it compares, records, reports and prepares rightly."""

import itertools
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from benchmarks.gpu import check, checks, engines, gptq, machine, prepare, throughput
from benchmarks.gpu.checks import Checked
from benchmarks.gpu.recording import Line, read
from benchmarks.gpu.unpack import unpack
from benchmarks.models import Model
from core.plugins import Plugins
from tests.gpu.parity import Continuation
from tests.gpu.targets import MAIN, VARIANTS, Target
from tests.support import REPOSITORY

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


def recorded(folder: Path, source: str) -> tuple[int, list[Line]]:
    (folder / "test_it.py").write_text(source)
    lines = folder / "lines"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:cov"]
    command += ["-p", "benchmarks.gpu.recording", "--record", str(lines), "test_it.py"]
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


def line(outcome: str) -> Line:
    return Line(test="t", outcome=outcome, reason="", seconds=0.0, figures={})


@pytest.mark.parametrize(
    ("outcomes", "trouble", "good"),
    [
        (["passed", "skipped"], None, True),
        (["passed", "failed"], None, False),
        (["skipped"], None, False),
        ([], None, False),
        (["passed"], "cut off after 9 seconds", False),
    ],
)
def test_checks_are_good_if_some_passed_and_none_failed(
    outcomes: list[str], trouble: str | None, good: bool
) -> None:
    assert Checked([line(outcome) for outcome in outcomes], trouble).good == good


@pytest.mark.parametrize(
    ("code", "trouble"),
    [
        (0, None),
        (1, None),
        (None, "cut off after 9 seconds"),
        (-11, "pytest was ended by SIGSEGV"),
        (5, "there were no tests"),
        (4, "pytest ended with code 4"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
def test_trouble_is_said_in_words(code: int | None, trouble: str | None) -> None:
    assert checks._trouble(code, 9) == trouble


@pytest.mark.thorough
@pytest.mark.skipif(engines.missing("llamacpp", "cpu") is not None, reason="needs llama.cpp")
def test_one_check_is_rehearsed() -> None:
    checked = checks.run("llamacpp", "cpu", 300, "logprobs and llamacpp-q8-cache")
    assert checked.good, checked
    [logprobs] = checked.lines
    assert logprobs["test"].startswith("gpu/test_texts.py::test_logprobs")
    assert logprobs["figures"]["logprobs compared"] > 100


def test_all_tests_on_a_gpu_are_run() -> None:
    marked = {
        file.relative_to(REPOSITORY).as_posix()
        for file in (REPOSITORY / "tests").rglob("test_*.py")
        if "pytest.mark.gpu" in file.read_text("utf-8")
    }
    assert {file for file in marked if not file.startswith(checks.TESTS)} == {
        "tests/test_gpu_check.py"  # this one
    }


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
def test_a_machine_without_cuda_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "needs a CUDA device" in str(engines.missing("hf", "cuda"))
    assert engines.missing("hf", "cpu") is None
    assert check.main(["--engines", "hf"]) == 1
    assert "hf: needs a CUDA device" in capsys.readouterr().out


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


# The report.


def results(**more: Any) -> dict[str, Any]:
    return {
        "machine": {"devices": [{"name": "NVIDIA H200"}]},
        "versions": {"torch": "2.11.0"},
        "imports": {"transformers": "ok"},
        "rehearsal": False,
        "engines": {},
        **more,
    }


FAILED: dict[str, Any] = {
    "good": False,
    "passed": 3,
    "failed": 1,
    "skipped": 2,
    "trouble": None,
    "tests": [{"test": "gpu/x", "outcome": "failed", "reason": "token 3 differs"}],
}
GOOD: dict[str, Any] = {
    "good": True,
    "passed": 3,
    "failed": 0,
    "skipped": 0,
    "trouble": None,
    "tests": [],
}


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (results(engines={"hf": GOOD, "llamacpp": {"missing": "not installed"}}), 0),
        (results(engines={"hf": GOOD, "llamacpp": FAILED}), 1),
        (results(engines={"llamacpp": {"missing": "not installed"}}), 1),
        (results(throughput={"bursts": {"hf": {}}, "errors": {}}), 0),
        (results(throughput={"bursts": {"hf": {}}, "errors": {"hf": "died"}}), 1),
    ],
)
def test_the_exit_code_says_whether_all_is_well(found: dict[str, Any], code: int) -> None:
    assert check.exit_code(found) == code


def test_the_summary_names_what_failed_and_what_is_missing() -> None:
    text = check.summary(
        results(
            engines={"hf": FAILED, "exllamav2": {"missing": "not installed: exllamav2"}},
            imports={"llama_cpp": "OSError: libcublas.so.13"},
        )
    )
    assert "NVIDIA H200; torch 2.11.0" in text
    assert "| hf | 3 | 1 | 2 |" in text
    assert "| exllamav2: not installed: exllamav2 |" in text
    assert "llama_cpp: OSError: libcublas.so.13" in text
    assert "1 failed:\n\ngpu/x\ntoken 3 differs" in text


def test_a_rehearsal_is_no_result() -> None:
    devices = [{"name": "NVIDIA GeForce RTX 4090"}]
    assert check.output_file(devices, "cuda") == check.RESULTS / "gpu-nvidia-geforce-rtx-4090.json"
    assert check.RESULTS not in check.output_file(devices, "cpu").parents


def test_imports_are_tried() -> None:
    assert machine.imports()["transformers"] == "ok"
    assert machine.versions()["torch"] == torch.__version__


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


async def test_engines_take_turns_with_the_same_prompts_and_fail_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fakes = {"hf": Fake(1, 300, 60, 400), "llamacpp": Fake(1, 200)}
    baseline = Fake(1, 100, 20, 100)
    monkeypatch.setattr(throughput, "running", _running)
    monkeypatch.setattr(throughput, "Served", lambda name: fakes[name])
    monkeypatch.setattr(throughput, "Baseline", lambda model, device: baseline)
    model = Model("m", REPOSITORY / "demo" / "model", Path("m.gguf"), "float32")
    plan = throughput.Plan(streams=[2], rounds=3, tokens=4)
    measured = await throughput.measure(["hf", "llamacpp"], "cpu", model, plan)
    assert measured["errors"] == {"llamacpp": "RuntimeError: it died"}
    assert fakes["hf"].asked == baseline.asked
    assert fakes["hf"].asked[0] != fakes["hf"].asked[1]
    table = throughput.table(measured)
    assert "| hf, free | 2 | 300 | 3.00 |  | 1 | 2 | 1 | 2 |" in table
    assert "| llamacpp, free | 2 | 200 | 2.00 |" in table


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
    (folder / "prepared.json").write_text(json.dumps({"python": "3.12"}))
    unpack(folder, site)
    unpack(folder, site)  # has been done
    assert (site / "enginebay_toy" / "__init__.py").read_text().startswith("VERSION = '1.5'")
    assert (site / "enginebay_other-2.0.dist-info").is_dir()
    assert (site / "toy_ext.so").read_bytes() == b"native"


def test_too_much_to_carry_is_an_error(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(1000))
    assert prepare.report([large], 1000) == 0
    assert prepare.report([large], 0.001) == 1
