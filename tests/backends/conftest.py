from pathlib import Path
from shutil import copytree

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from enginebay_hf.engine import HFEngine
from tests.backends.tiny import load, make_model

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    """A model's folder to damage."""
    return copytree(tiny_llama, tmp_path / "model")


@pytest.fixture(scope="session")
def model(tiny_llama: Path) -> PreTrainedModel:
    """The same model in transformers, as a reference."""
    return AutoModelForCausalLM.from_pretrained(tiny_llama).eval()


@pytest.fixture(scope="session")
def shared_engine(tiny_llama: Path) -> HFEngine:
    return load(tiny_llama)


@pytest.fixture
def engine(shared_engine: HFEngine):
    """An engine that must be empty before and after every test."""
    assert_empty(shared_engine)
    yield shared_engine
    assert_empty(shared_engine)


def assert_empty(engine: HFEngine) -> None:
    assert not engine._requests
    assert not engine._scheduler.running
    assert not engine._scheduler.waiting
