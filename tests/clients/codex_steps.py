"""What is tried with Codex's command line: `codex exec`, in a folder with one file."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.clients import install
from tests.clients.journal import Journal
from tests.clients.programs import KEY
from tests.clients.report import Report

CONFIG = """\
model = "{model}"
model_provider = "enginebay"

[model_providers.enginebay]
name = "Enginebay"
base_url = "{server}/v1"
wire_api = "responses"
env_key = "ENGINEBAY_API_KEY"
"""
EDIT = "Add a second line to notes.txt."


class Codex:
    """Runs of `codex exec` with a home and a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._home, self._work = folder / "codex-home", folder / "codex-work"
        for each in (self._home, self._work):
            shutil.rmtree(each, ignore_errors=True)
            each.mkdir()
        self._env = {**os.environ, "CODEX_HOME": str(self._home)}
        self._program = install.codex()
        self.fresh_notes()

    @property
    def notes(self) -> str:
        """The file that the model is to change."""
        return (self._work / "notes.txt").read_text(encoding="utf-8")

    def fresh_notes(self) -> None:
        """Write it anew."""
        (self._work / "notes.txt").write_text("first line\n", encoding="utf-8")

    def connect(self, server: str, *, model: str = "coder", key: str = KEY) -> None:
        """Write `config.toml` for this server."""
        config = CONFIG.format(server=server, model=model)
        (self._home / "config.toml").write_text(config, encoding="utf-8")
        self._env["ENGINEBAY_API_KEY"] = key

    def connect_oss(self, server: str) -> None:
        """Forget the config; `--oss` finds the server without a key."""
        (self._home / "config.toml").unlink(missing_ok=True)
        self._env.pop("ENGINEBAY_API_KEY", None)
        self._env["CODEX_OSS_BASE_URL"] = f"{server}/v1"

    def run(self, prompt: str, *arguments: str) -> list[dict[str, Any]]:
        """The events of a run, in its own sandbox, that ends within two minutes."""
        command = [str(self._program), "exec", "--json", "--skip-git-repo-check"]
        command += ["--sandbox", "workspace-write", *arguments, prompt]
        try:
            done = subprocess.run(
                command,
                cwd=self._work,
                env=self._env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise AssertionError("it did not end within two minutes") from error
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        assert lines, done.stdout + done.stderr
        return [json.loads(line) for line in lines]


def texts(events: list[dict[str, Any]], kind: str) -> list[str]:
    """The texts of all finished items of a kind."""
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item["text"] for item in items if item["type"] == kind]


def failure(events: list[dict[str, Any]]) -> str:
    """Why the turn failed. Raises `AssertionError` if it did not."""
    failed = [event["error"]["message"] for event in events if event["type"] == "turn.failed"]
    assert failed, events[-1]
    return str(failed[0])


def try_provider(codex: Codex, server: str, report: Report, journal: Journal) -> None:
    """A provider of `config.toml`, with a key. RESP-39."""
    with report.step("a wrong key") as finding:
        codex.connect(server, key="sk-wrong")
        finding.seen = failure(codex.run("Hello"))
        assert "API key is not valid" in finding.seen, finding.seen
    with report.step("a turn that edits a file") as finding:
        codex.connect(server)
        finding.seen = edited(codex, codex.run(EDIT))
        assert journal.last().outcome == "finished"
    with report.step("the next turn of the conversation") as finding:
        codex.fresh_notes()
        finding.seen = edited(codex, codex.run(EDIT, "resume", "--last"))
        assert journal.last().prompt.count("It is done") == 1, "not the conversation so far"
    with report.step("a tool of a namespace") as finding:
        [said] = texts(codex.run("Please close the agent."), "agent_message")
        assert "unsupported call" not in said, said
        finding.seen = said
    with report.step("a prompt that is too long") as finding:
        codex.connect(server, model="enginebay-demo")
        finding.seen = failure(codex.run(EDIT))
        assert "context window" in finding.seen, finding.seen


def try_oss(codex: Codex, server: str, report: Report) -> None:
    """`--oss` with both of its providers, without a key. OLL-21."""
    for provider in ("ollama", "lmstudio"):
        with report.step(f"--oss --local-provider {provider}") as finding:
            codex.connect_oss(server)
            codex.fresh_notes()
            arguments = ("--oss", "--local-provider", provider, "--model", "coder")
            finding.seen = edited(codex, codex.run(EDIT, *arguments))


def edited(codex: Codex, events: list[dict[str, Any]]) -> str:
    """What was seen of a run that changed the file. Raises `AssertionError` if it did not."""
    assert events[-1]["type"] == "turn.completed", events[-1]
    assert codex.notes == "first line\nsecond line\n", codex.notes
    [said] = texts(events, "agent_message")
    thoughts = texts(events, "reasoning")
    usage = events[-1]["usage"]
    assert usage["input_tokens"] > usage["output_tokens"] > 0, usage
    return f"notes.txt has its second line; thought {thoughts}; {said!r}; {usage}"
