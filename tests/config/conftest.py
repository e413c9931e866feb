import os
from collections.abc import Callable
from pathlib import Path

import pytest

from enginebay.config.load import load_config
from enginebay.config.problems import ConfigError

WriteConfig = Callable[[str], Path]
ProblemsOf = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def clean_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, and no variable of the developer's own."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("ENGINEBAY_"):
            monkeypatch.delenv(name)


@pytest.fixture
def write() -> WriteConfig:
    """Write `config.yml` into the current folder."""

    def write_config(text: str) -> Path:
        Path("config.yml").write_text(text, encoding="utf-8")
        return Path("config.yml")

    return write_config


@pytest.fixture
def problems_of(write: WriteConfig) -> ProblemsOf:
    """What is wrong with a file of this text, as it is printed."""

    def problems(text: str, **flags: object) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load_config(write(text), {key.replace("__", "."): v for key, v in flags.items()})
        return [str(problem) for problem in caught.value.problems]

    return problems
