"""`enginebay keys usage`, and the file of a server that is killed. KEY-1"""

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from enginebay.chat.answer.account import Used
from enginebay.server.access import keys_file
from enginebay.server.usage.usage_file import Slot, UsageFile
from tests.cli.conftest import Run, Serving, StartServing

TODAY = datetime.now(UTC).date()
posix = pytest.mark.skipif(os.name == "nt", reason="Windows cannot send signals to one process")
PLUGIN = """
import itertools
import time

from enginebay.testing import ScriptedEngine
from enginebay import EngineBackend, hookimpl


def says(prompt, index):
    if "forever" not in prompt:
        return ["Hel", "lo"]
    return slowly()


def slowly():
    while True:
        time.sleep(0.001)
        yield "a"


@hookimpl
def register_backends(register):
    engine = lambda: ScriptedEngine(says, context_length=10**9)
    register("scripted", lambda settings: EngineBackend(engine))
"""


@pytest.fixture(autouse=True)
def config() -> None:
    Path("plugins").mkdir()
    Path("plugins/for_tests.py").write_text(PLUGIN, "utf-8")
    models = "models: [{name: m, backend: scripted, path: .}]\n"
    Path("config.yml").write_text(f"server: {{port: 0, auth: required}}\n{models}", "utf-8")
    names = ("anna", "bob", "root")
    entries = [
        keys_file.new_entry(name, f"key-of-{name}", "admin" if name == "root" else "user")
        for name in names
    ]
    keys_file.create(Path("keys.yml"), entries)


def fill() -> None:
    file = UsageFile(Path("usage.db"))
    before = TODAY - timedelta(days=1)
    long_ago = TODAY - timedelta(days=50)
    file.add(
        {
            Slot(str(TODAY), "anna", "m"): Used(3, 100, 40, 7),
            Slot(str(before), "anna", "m"): Used(1, 1000, 0, 3),
            Slot(str(long_ago), "anna", "m"): Used(1, 50, 0, 5),
            Slot(str(TODAY), "bob", "other"): Used(1, 10, 0, 0),
            Slot(str(TODAY), "", "m"): Used(1, 2, 0, 1),
        }
    )
    file.close()


def cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.replace("(no key)", "(none)").splitlines()]


def test_tables(run: Run) -> None:
    fill()
    head = ["model", "requests", "prompt", "cached", "completion"]
    assert cells(run("keys", "usage").stdout) == [
        ["key", *head],
        ["(none)", "m", "1", "2", "0", "1"],
        ["anna", "m", "4", "1100", "40", "10"],
        ["bob", "other", "1", "10", "0", "0"],
        ["total", "6", "1112", "40", "11"],
    ]
    assert cells(run("keys", "usage", "--days", "100").stdout)[2][3] == "1150"
    assert cells(run("keys", "usage", "--days", "1").stdout)[2][3] == "100"
    assert cells(run("keys", "usage", "anna").stdout) == [
        ["day", *head],
        [str(TODAY - timedelta(days=1)), "m", "1", "1000", "0", "3"],
        [str(TODAY), "m", "3", "100", "40", "7"],
        ["total", "4", "1100", "40", "10"],
    ]


def test_json(run: Run) -> None:
    fill()
    found = json.loads(run("keys", "usage", "--json", "--days", "1").stdout)
    counts = {"requests": 1, "prompt_tokens": 2, "cached_tokens": 0, "completion_tokens": 1}
    assert found[0] == {"key": None, "model": "m", "day": str(TODAY), **counts}
    assert [entry["key"] for entry in found] == [None, "anna", "bob"]
    assert json.loads(run("keys", "usage", "root", "--json").stdout) == []


def test_what_cannot_be_shown(run: Run) -> None:
    result = run("keys", "usage")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "nothing was used in the last 30 days\n"
    assert not Path("usage.db").exists(), "looking makes no file"
    result = run("keys", "usage", "nobody")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "there is no key of nobody; there are keys of: anna, bob, root\n"
    for days in ("0", "-3", "x", "99999"):
        assert run("keys", "usage", "--days", days).exit_code == 2
    Path("usage.db").write_text("no database", "utf-8")
    result = run("keys", "usage")
    assert result.exit_code == 1
    assert "usage.db cannot be read: it is damaged: file is not a database" in result.stderr
    Path("usage.db").unlink()
    with sqlite3.connect("usage.db") as other:
        other.execute("CREATE TABLE usage (a)")
    other.close()
    assert "it is the database of another program" in run("keys", "usage").stderr
    Path("config.yml").write_text("server: {usage_file: off}", "utf-8")
    result = run("keys", "usage")
    assert result.exit_code == 1
    assert "usage is not kept in a file: set `server.usage_file`" in result.stderr


def url_of(serving: Serving) -> str:
    return serving.lines_until("Model ")[0].split()[4].rstrip(";")


def ask(url: str, key: str, prompt: str = "abc") -> dict[str, Any]:
    headers = {"x-api-key": f"key-of-{key}"}
    answer = httpx2.post(f"{url}/v1/completions", json={"prompt": prompt}, headers=headers)
    assert answer.status_code == 200, answer.text
    usage: dict[str, Any] = answer.json()["usage"]
    return usage


def shown(run: Run, name: str) -> dict[str, int]:
    """What the file says of a key, as the command shows it."""
    counts = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
    entries = json.loads(run("keys", "usage", name, "--json").stdout)
    return {count: sum(entry[count] for entry in entries) for count in counts}


def until(condition: Callable[[], bool]) -> None:
    """Return when it holds; the test's own time is the limit."""
    while not condition():
        time.sleep(0.01)


@posix
def test_a_server_that_is_killed(start_serving: StartServing, run: Run) -> None:
    """What it has written stays, adds up, and is what the next one begins with."""
    serving = start_serving()
    url = url_of(serving)
    told = {"anna": [ask(url, "anna") for _ in range(5)], "bob": [ask(url, "bob")]}
    headers = {"x-api-key": "key-of-anna"}
    body = {"prompt": "forever", "stream": True, "max_tokens": 10**6}
    with httpx2.stream("POST", f"{url}/v1/completions", json=body, headers=headers) as stream:
        lines = stream.iter_lines()
        for _ in range(100):
            next(lines)
        sums = {
            key: sum(usage["completion_tokens"] for usage in usages) for key, usages in told.items()
        }
        until(lambda: shown(run, "anna")["completion_tokens"] > sums["anna"])
        until(lambda: shown(run, "bob")["completion_tokens"] == sums["bob"])
        running = shown(run, "anna")
        assert running["requests"] == 6, "of an answer that runs, too"
        serving.process.send_signal(signal.SIGKILL)
        serving.process.wait(60)
    killed = {name: shown(run, name) for name in ("anna", "bob")}
    assert killed["anna"]["completion_tokens"] >= running["completion_tokens"]
    assert killed["anna"]["prompt_tokens"] == 5 * 3 + len("forever")
    serving = start_serving()
    url = url_of(serving)
    for name, used in killed.items():
        found = httpx2.get(f"{url}/v1/usage", headers={"x-api-key": f"key-of-{name}"}).json()
        assert [(entry["key"], entry["model"]) for entry in found["data"]] == [(name, "m")]
        assert {count: found["data"][0][count] for count in used} == used
    more = ask(url, "anna")
    assert serving.interrupt() == 0, "which writes what is left"
    assert shown(run, "anna")["completion_tokens"] == (
        killed["anna"]["completion_tokens"] + more["completion_tokens"]
    )
    assert list(Path().glob("usage.db*")) == [Path("usage.db")], "no journal is left"


@posix
@pytest.mark.thorough
def test_at_most_the_last_second_is_lost(start_serving: StartServing, run: Run) -> None:
    serving = start_serving()
    url = url_of(serving)
    began = time.monotonic()
    answered = []
    while time.monotonic() - began < 5:
        answered.append((time.monotonic(), ask(url, "anna")["total_tokens"]))
    killed_at = time.monotonic()
    serving.process.send_signal(signal.SIGKILL)
    serving.process.wait(60)
    used = shown(run, "anna")
    kept = used["prompt_tokens"] + used["completion_tokens"]
    assert kept >= sum(tokens for at, tokens in answered if at < killed_at - 1)
    assert kept <= sum(tokens for _, tokens in answered)
