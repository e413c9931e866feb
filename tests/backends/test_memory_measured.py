"""Estimates against what a process really takes, of one model of each engine."""

import sys
from pathlib import Path

import pytest

from benchmarks.memory import measure
from benchmarks.memory_models import CHECKPOINTS, GGUF, write_checkpoint, write_gguf

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="resident memory is counted as on Linux"),
]


def test_llamacpp(tmp_path: Path) -> None:
    [shape] = [shape for shape in GGUF if shape.name == "q8-experts"]
    assert abs(measure("llamacpp", write_gguf(shape, tmp_path / "model.gguf")).error) < 0.25


def test_hf(tmp_path: Path) -> None:
    [shape] = [shape for shape in CHECKPOINTS if shape.name == "float32"]
    assert abs(measure("hf", write_checkpoint(shape, tmp_path / "model")).error) < 0.25
