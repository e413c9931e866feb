"""What is tried with the AI SDK: `node/ai_sdk.mjs` tries it and tells its findings."""

import json
import os
import subprocess
from pathlib import Path

from tests.clients import install
from tests.clients.install import SEEN
from tests.clients.journal import Journal
from tests.clients.picture_steps import drawn
from tests.clients.programs import KEY
from tests.clients.report import Finding, Report

SCRIPT = Path(__file__).parent / "node" / "ai_sdk.mjs"


def try_all(server: str, report: Report, journal: Journal) -> None:
    """Every step with both of its providers."""
    before = len(journal.asked())
    env = {
        **os.environ,
        "SERVER": server,
        "KEY": KEY,
        "MODULES": str(install.ai_sdk()),
        "PICTURE": str(drawn()),
    }
    log = SEEN / "ai-sdk.log"
    with log.open("w", encoding="utf-8") as errors:
        done = subprocess.run(
            ["node", str(SCRIPT)], env=env, stdout=subprocess.PIPE, stderr=errors, check=False
        )
    report.add([Finding(**json.loads(line)) for line in done.stdout.splitlines()])
    with report.step("the script ends, nothing runs on"):
        assert done.returncode == 0, log.read_text(encoding="utf-8")[-300:]
        journal.last()
    with report.step("abort, in the engine") as finding:
        asked = journal.asked()[before:]
        closed = [each for each in asked if each.outcome == "closed"]
        assert len(closed) == 2, [each.outcome for each in asked]
        finding.seen = f"after {[each.tokens for each in closed]} tokens"
