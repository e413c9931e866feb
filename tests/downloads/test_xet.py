"""Files that a hub keeps in a Xet store, here one in a folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from enginebay.models.downloads import Control, Places, Progress, StoppedError, Wanted, download
from enginebay.models.downloads.errors import HubError
from tests.downloads.conftest import FILES, StartHub
from tests.downloads.hub import REPO, TOKEN, FakeHub

hf_xet = pytest.importorskip("hf_xet")

NAME = "model.safetensors"
LARGE = bytes(range(251)) * 2000
HAD = 300_000

Start = Callable[..., FakeHub]


@pytest.fixture
def start(start_hub: StartHub, tmp_path: Path) -> Start:
    """`start(stored)` runs a hub whose Xet store has other bytes than it says, if given."""

    def run(stored: bytes = LARGE) -> FakeHub:
        store = f"local://{tmp_path / 'store'}"
        commit = hf_xet.XetSession().new_upload_commit(endpoint=store)
        upload = commit.start_upload_bytes(stored)
        commit.wait_to_finish()
        xet = {NAME: upload.result().xet_info.hash}
        return start_hub({**FILES, NAME: LARGE}, xet=xet, xet_store=store)

    return run


@pytest.fixture
def get(tmp_path: Path) -> Callable[..., Path]:
    places = Places(tmp_path / "models", tmp_path / "loras")

    def run(report: Callable[[Progress], None] = lambda _: None, **wanted: Any) -> Path:
        control = wanted.pop("control", Control())
        return download(Wanted(repo_id=REPO, **wanted), places, report, control)

    return run


def part(tmp_path: Path) -> Path:
    [found] = [
        path for path in tmp_path.glob("models/tiny/.cache/enginebay/*.part") if path.stat().st_size
    ]
    return found


def stopped(get: Callable[..., Path]) -> list[int]:
    """Stop when the large file has come, and before it is checked; what was said of bytes."""
    control, said = Control(), []

    def report(progress: Progress) -> None:
        said.append(progress.completed)
        if progress.completed >= len(LARGE):
            control.stop()

    with pytest.raises(StoppedError):
        get(report, control=control)
    return said


def test_large_files_come_from_the_store(
    start: Start, get: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start()
    monkeypatch.setattr("enginebay.models.downloads.hub._LARGEST_OVER_HTTP", 1000)
    folder = get(token=TOKEN)
    assert (folder / NAME).read_bytes() == LARGE
    assert sorted(name for name, _ in hub.fetched) == ["config.json", "sub/tokenizer.json"]
    assert {token for _, _, token in hub.asked} == {f"Bearer {TOKEN}"}


def test_the_store_goes_on_in_the_middle(
    start: Start, get: Callable[..., Path], tmp_path: Path
) -> None:
    start()
    stopped(get)
    with part(tmp_path).open("r+b") as kept:
        kept.truncate(HAD)
    said = stopped(get)
    assert HAD <= said[-2] < said[-1]
    with part(tmp_path).open("r+b") as kept:
        kept.truncate(HAD)
        kept.write(b"other")
    with pytest.raises(HubError, match="does not match its hash"):
        get()
    assert (get() / NAME).read_bytes() == LARGE


@pytest.mark.parametrize("stored", [LARGE[:-1], LARGE[:-1] + b"x", b""])
def test_a_store_with_other_bytes(
    start: Start, get: Callable[..., Path], tmp_path: Path, stored: bytes
) -> None:
    start(stored)
    with pytest.raises(HubError):
        get()
    assert not (tmp_path / "models/tiny" / NAME).exists()


def test_a_store_that_is_away(
    start: Start, get: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start()
    monkeypatch.setattr("enginebay.models.downloads.hub._TRIES", 1)
    store, hub.xet_store = hub.xet_store, "http://127.0.0.1:9"
    with pytest.raises(HubError, match="what arrived is kept"):
        get()
    hub.xet_store = store
    assert (get() / NAME).read_bytes() == LARGE


def test_xet_can_be_switched_off(
    start: Start, get: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start()
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    assert (get() / NAME).read_bytes() == LARGE
    assert (NAME, None) in hub.fetched
