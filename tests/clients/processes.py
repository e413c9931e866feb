"""Programs that run while the clients are tried: started, waited for, stopped."""

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running(
    command: Sequence[str],
    url: str,
    log: Path,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    seconds: float = 240,
) -> Iterator[None]:
    """Run a program until the block ends; the block begins when `url` answers with 200.

    Raises `RuntimeError` with the end of its log if it leaves or does not answer in time.
    """
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, cwd=cwd, env={**os.environ, **(env or {})}, stdout=output, stderr=output
        )
    try:
        _wait(process, url, log, seconds)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: "subprocess.Popen[bytes]", url: str, log: Path, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not _answers(url):
        if process.poll() is not None or time.monotonic() > until:
            end = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise RuntimeError(f"{url} does not answer; the end of {log}:\n{end}")
        time.sleep(0.5)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
