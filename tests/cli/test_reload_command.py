"""MOD-4: a running `enginebay serve` that is told to read its config again."""

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run, Serving, StartServing

CONFIG = "server: {port: 0, auth: none}\nmodels:\n"
MODEL = "  - {name: %s, backend: scripted, path: .}\n"
posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGHUP")


def write(*models: str, more: str = "") -> None:
    text = CONFIG + "".join(MODEL % name for name in models) + more
    Path("config.yml").write_text(text, encoding="utf-8")


def until_logged(serving: Serving, pattern: str) -> None:
    while not re.search(pattern, serving.log):
        assert serving.process.poll() is None, serving.log


@posix
def test_a_hangup(plugin: Path, start_serving: StartServing, run: Run) -> None:
    write("a", "b")
    serving = start_serving()
    lines = serving.lines_until("^Model       b")
    [url] = [line.split()[-1] for line in lines if line.startswith("Page")]
    write("b", "c", more="plugins: {folder: other}\n")
    serving.process.send_signal(signal.SIGHUP)
    until_logged(serving, "after a restart: plugins.folder")
    assert "models added: c" in serving.log
    assert "models removed: a" in serving.log
    write("b", more="loading: {max_loaded_models: 0}\n")
    serving.process.send_signal(signal.SIGHUP)
    until_logged(serving, "stays in effect")
    assert "config.yml:4: loading.max_loaded_models" in serving.log

    result = run("config", "reload", "--url", url)
    assert result.exit_code == 1
    assert "config.yml:4: loading.max_loaded_models" in result.stderr
    write("b", "d")
    result = run("config", "reload", "--url", url)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "models added: d\nmodels removed: c\n"
    assert run("config", "reload", "--url", url).stdout == "no model has changed\n"
    assert serving.interrupt() == 0
    assert run("config", "reload", "--url", url).exit_code == 1


@posix
def test_a_terminal_that_is_closed_ends_it(plugin: Path) -> None:
    write("a")
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "enginebay.cli", "serve"],
        stdin=its,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    with process:
        os.close(its)
        assert process.stdout
        assert any(line.startswith("Model       a") for line in process.stdout)
        os.close(ours)
        process.send_signal(signal.SIGHUP)  # as the system does to what the terminal controls
        assert process.wait(60) == 0
