"""Two processes that download into one folder: one after the other, however the first one ends."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from filelock import FileLock

from enginebay.config.schema import Config
from enginebay.models.downloads import HubName, Places, Progress, StoppedError, Wanted, download
from enginebay.models.downloads.download import Control
from enginebay.models.downloads.named import find_local
from enginebay.plugins import Plugins
from tests.downloads.conftest import StartHub
from tests.downloads.hub import REPO
from tests.support import REPOSITORY, serve

NAME = "tiny-Q4_K_M.gguf"
GGUF = bytes(range(256)) * 4000
WAITS = "another process downloads into the same folder; waiting for it"
StartProcess = Callable[[], subprocess.Popen[str]]


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[StartProcess]:
    """`enginebay download` into `tmp_path`."""
    with ExitStack() as stack:

        def start() -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "enginebay.cli", "download", f"{REPO}:Q4_K_M"]
            environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
            process = subprocess.Popen(
                command, cwd=tmp_path, env=environment, text=True, stderr=subprocess.PIPE
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def said(process: subprocess.Popen[str]) -> str:
    assert process.stderr
    return process.stderr.readline().strip()


@pytest.mark.parametrize("killed", [False, True])
def test_the_second_waits_and_goes_on(
    start_hub: StartHub, start_process: StartProcess, tmp_path: Path, killed: bool
) -> None:
    hub = start_hub(
        {NAME: GGUF}, lfs=set(), gates={NAME: threading.Event()}, breaks={NAME: [500_000]}
    )
    first = start_process()
    assert hub.reached.wait(60)
    second = start_process()
    assert said(second) == WAITS
    assert len(hub.fetched) == 1
    hub.breaks.clear()
    gate = hub.gates.pop(NAME)
    arrived = True
    if killed:
        first.kill()
        first.wait(60)
        arrived = any(part.stat().st_size for part in tmp_path.glob("models/**/*.part"))
    gate.set()
    assert second.wait(60) == 0
    assert first.wait(60) == (-9 if killed else 0)
    local = find_local(tmp_path / "models", HubName(REPO))
    assert local
    assert local.path.read_bytes() == GGUF
    assert not [*local.folder.glob("**/*.part")]
    assert len(hub.fetched) == 2  # what broke off is taken up by either of them
    assert bool(hub.fetched[1][1]) == arrived  # a range: it went on where the first one was


def test_one_that_waits_can_be_stopped(
    start_hub: StartHub, start_process: StartProcess, tmp_path: Path
) -> None:
    hub = start_hub(
        {NAME: GGUF}, lfs=set(), gates={NAME: threading.Event()}, breaks={NAME: [500_000]}
    )
    start_process()
    assert hub.reached.wait(60)
    control = Control()
    told: list[Progress] = []

    def report(progress: Progress) -> None:
        told.append(progress)
        control.stop()

    wanted = Wanted(repo_id=REPO, quant="Q4_K_M")
    with pytest.raises(StoppedError):
        download(wanted, Places(tmp_path / "models", tmp_path / "loras"), report, control)
    assert [each.waiting for each in told] == [True]


def test_a_server_waits_and_says_so(start_hub: StartHub, tmp_path: Path) -> None:
    """A lock is one of the open file, so this test can be the other process."""
    start_hub({NAME: GGUF}, lfs=set())
    lock = FileLock(tmp_path / "models" / "tiny-Q4_K_M" / ".cache" / "enginebay" / "download.lock")
    Path(lock.lock_file).parent.mkdir(parents=True)
    server_config = {"model_dir": str(tmp_path / "models")}
    with lock, serve(Config.model_validate({"server": server_config}), Plugins()) as server:
        body = {"repo_id": REPO, "quant": "Q4_K_M", "stream": True}
        with server.http.stream("POST", "/v1/download", json=body) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: {"))
            first = json.loads(next(lines)[6:])
            assert (first["status"], first["completed"]) == ("waiting", 0)
            lock.release()
            assert [json.loads(line[6:])["status"] for line in lines][-1] == "finished"


def test_a_folder_that_was_only_begun_is_gone_on_with(start_hub: StartHub, tmp_path: Path) -> None:
    """As after a kill between its creation and its first state."""
    start_hub({NAME: GGUF}, lfs=set())
    lock = tmp_path / "models" / "tiny-Q4_K_M" / ".cache" / "enginebay" / "download.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    places = Places(tmp_path / "models", tmp_path / "loras")
    folder = download(Wanted(repo_id=REPO, quant=""), places, lambda _: None, Control())
    assert (folder / NAME).read_bytes() == GGUF
