"""What a machine may lack for exllamav2, each thing in its turn, and how it is said."""

import importlib.util
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import cpp_extension

from enginebay import BackendUnavailableError
from enginebay_exllamav2 import build
from enginebay_exllamav2.build import building, built_extension, missing_compiler
from enginebay_exllamav2.requirements import check_library
from tests.effort import some
from tests.support import DEMO_MODEL, REPOSITORY
from tests.test_missing_engine import CODE


class Machine:
    """A machine that has everything, from which things can be taken away."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self._patch = patch
        self.folder = folder
        patch.setattr(metadata, "version", lambda name: "0.3.2+cu130.torch2.11.0")
        patch.setattr(torch, "__version__", "2.11.0+cu130")
        patch.setattr(torch.version, "cuda", "13.0")
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(importlib.util, "find_spec", lambda name: object())
        patch.setattr(build, "build_folder", lambda: folder)
        patch.setattr(cpp_extension, "CUDA_HOME", "/usr/local/cuda")
        patch.setattr(build.shutil, "which", lambda name, path=None: f"/usr/bin/{name}")
        patch.setattr(sys, "path", [*sys.path])

    def lacks(self, *things: str) -> None:
        def absent(name: str) -> str:
            raise metadata.PackageNotFoundError(name)

        taken: dict[str, tuple[Any, str, Any]] = {
            "package": (metadata, "version", absent),
            "cuda build": (torch.version, "cuda", None),
            "version": (metadata, "version", lambda name: "0.2.9+cu124.torch2.6.0"),
            "wheel": (metadata, "version", lambda name: "0.3.2+cu128.torch2.9.0"),
            "device": (torch.cuda, "is_available", lambda: False),
            "extension": (importlib.util, "find_spec", lambda name: None),
            "toolkit": (cpp_extension, "CUDA_HOME", None),
            "ninja": (build.shutil, "which", lambda name, path=None: name != "ninja" or None),
            "compiler": (build.shutil, "which", lambda name, path=None: name == "ninja" or None),
        }
        for thing in things:
            self._patch.setattr(*taken[thing])


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


MISSING = [
    ("package", False, "the package exllamav2: install it with: python3 start.py install"),
    ("version", False, r"exllamav2 0\.3\.2, but 0\.2\.9\+cu124\.torch2\.6\.0 is installed"),
    ("cuda build", False, "is built for CPUs only: install the build for your GPU"),
    ("device", False, "sees none: check that nvidia-smi lists one"),
    ("wheel", False, r"for torch 2\.11\.0\+cu130, and .* has one for torch 2\.9: pip install --fo"),
    ("extension", False, "set build_extension: true in the model's options"),
    ("toolkit", True, r"the CUDA toolkit \(nvcc\)"),
    ("ninja", True, "ninja: pip install ninja"),
    ("compiler", True, r"a C\+\+ compiler: install g\+\+"),
]


@pytest.mark.parametrize(("thing", "build_extension", "message"), MISSING)
def test_what_is_missing_is_named_with_what_to_do(
    machine: Machine, thing: str, build_extension: bool, message: str
) -> None:
    machine.lacks(thing, *(["extension"] if build_extension else []))
    with pytest.raises(BackendUnavailableError, match=message) as error:
        check_library(build_extension=build_extension)
    assert "docs/guides/exllamav2.md" in error.value.message


def test_the_first_thing_that_is_missing_is_named_first(machine: Machine) -> None:
    machine.lacks(*(thing for thing, _, _ in reversed(MISSING)))
    with pytest.raises(BackendUnavailableError, match="the package exllamav2"):
        check_library(build_extension=True)


def test_a_machine_that_has_all_is_left_alone(machine: Machine) -> None:
    before = list(sys.path)
    check_library(build_extension=False)
    assert sys.path == before


def test_a_build_that_torch_keeps_is_found(machine: Machine) -> None:
    machine.lacks("extension", "toolkit")
    (machine.folder / "exllamav2_ext.so").touch()
    check_library(build_extension=False)
    assert sys.path[-1] == str(machine.folder)


def test_a_build_that_was_broken_off_is_none(machine: Machine) -> None:
    machine.lacks("extension")
    (machine.folder / "exllamav2_ext.so").touch()
    (machine.folder / "lock").touch()
    assert built_extension() is None
    with pytest.raises(BackendUnavailableError, match="build_extension: true"):
        check_library(build_extension=False)
    check_library(build_extension=True)


def test_what_can_be_compiled_with_is_enough(machine: Machine) -> None:
    machine.lacks("extension")
    assert missing_compiler() is None
    check_library(build_extension=True)


def test_compiling_reports_how_far_it_is_and_finds_ninja(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.lacks("extension")
    monkeypatch.setattr(build, "_POLL_S", 0.001)
    monkeypatch.setenv("PATH", "/usr/bin")
    (machine.folder / "ext_rope.o").touch()
    stages: list[tuple[str, float]] = []
    seen = build.threading.Event()

    def report(stage: str, fraction: float) -> None:
        stages.append((stage, fraction))
        seen.set()

    with building(report):
        assert str(Path(sys.executable).parent) in os.environ["PATH"].split(os.pathsep)
        assert seen.wait(30)
    assert stages[0] == ("compiling exllamav2 (1 of 47 files)", 0.0)
    assert os.environ["PATH"] == "/usr/bin"


def test_nothing_is_watched_where_nothing_is_compiled(machine: Machine) -> None:
    threads = build.threading.active_count()
    with building(lambda stage, fraction: None):
        assert build.threading.active_count() == threads


@pytest.mark.parametrize(("age_s", "stays"), [(60, True), (3600, False)])
def test_the_lock_of_a_build_that_was_killed_is_removed(
    machine: Machine, age_s: int, stays: bool
) -> None:
    machine.lacks("extension")
    lock = machine.folder / "lock"
    lock.touch()
    then = lock.stat().st_mtime - age_s
    os.utime(lock, (then, then))
    with building(lambda stage, fraction: None):
        assert lock.exists() == stays


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("isolation", some(["thread", "process"], ["process"]))
def test_the_server_starts_and_the_model_says_what_is_missing(
    isolation: str, tmp_path: Path
) -> None:
    script = tmp_path / "load.py"
    script.write_text(CODE)
    result = subprocess.run(
        [sys.executable, str(script), "exllamav2", isolation, str(DEMO_MODEL)],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert result.stdout.startswith("failed the exllamav2 backend needs ")
    assert "docs/guides/exllamav2.md" in result.stdout
