"""Artifacts as fixtures: tests are skipped, with the reason, where one cannot be downloaded."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from enginebay.config.schema import Config
from tests.real import artifacts, gemma
from tests.real.gemma import Gemma
from tests.real.serving import loaded
from tests.real.vocabularies import Vocabulary, fetched, tiny_model
from tests.support import Server

Artifact = TypeVar("Artifact")
SIZES = {**gemma.SIZES, "threads": 1}


def available(get: Callable[..., Artifact], *arguments: Any) -> Artifact:
    try:
        return get(*arguments)
    except artifacts.UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session", params=[gemma.hf, gemma.llamacpp], ids=["hf", "llamacpp"])
def model(request: pytest.FixtureRequest) -> Gemma:
    return available(request.param)


@pytest.fixture(scope="session")
def minilm() -> Path:
    return available(artifacts.minilm)


@pytest.fixture(scope="session", params=artifacts.TOKENIZERS)
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return available(fetched, request.param)


@pytest.fixture(scope="session")
def served(vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny model with the vocabulary."""
    folder = tiny_model(vocabulary, tmp_path_factory.mktemp("tiny") / vocabulary.name)
    options = {**SIZES, "device": "cpu", "dtype": "float32"}
    model = {
        "name": vocabulary.name,
        "backend": "hf",
        "path": str(folder),
        "isolation": "thread",
        "options": options,
    }
    with loaded(Config.model_validate({"models": [model]})) as server:
        yield server
