"""Run real clients against this server in headless Chromium, and say what works.

    make test-clients
    python3 start.py run -m tests.clients.run sillytavern-chat open-webui

Installs the clients into `.clients/installed/` first, which takes a while and gigabytes.
Screenshots, logs and `findings.md` are left in `.clients/seen/`. Leaves with 1 if something
does not work.
"""

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack

from tests.clients import (
    open_webui_steps,
    picture_steps,
    programs,
    sillytavern_steps,
    trouble_steps,
)
from tests.clients.browser import open_page
from tests.clients.install import SEEN
from tests.clients.journal import Journal
from tests.clients.open_webui import OpenWebUI
from tests.clients.report import Finding, Report, table
from tests.clients.sillytavern import SillyTavern
from tests.clients.sillytavern_modes import ChatCompletion, TextCompletion

Try = Callable[[str, Journal], list[Finding]]


def try_chat(server: str, journal: Journal) -> list[Finding]:
    """SillyTavern with chat completions."""
    with programs.sillytavern(SEEN) as url, open_page(url) as page:
        mode = ChatCompletion(SillyTavern(page), server)
        report = Report(mode.name, page, SEEN)
        sillytavern_steps.try_all(mode, report, journal)
        sillytavern_steps.try_chat_only(mode, report, journal)
        picture_steps.try_sillytavern(mode, report, journal)
        trouble_steps.try_all(mode.tavern, mode.connect_to, report, journal)
        return report.findings


def try_tabby(server: str, journal: Journal) -> list[Finding]:
    """SillyTavern with text completions, as if of TabbyAPI."""
    with programs.sillytavern(SEEN) as url, open_page(url) as page:
        mode = TextCompletion(SillyTavern(page), server)
        report = Report(mode.name, page, SEEN)
        sillytavern_steps.try_all(mode, report, journal)
        sillytavern_steps.try_text_only(mode, report)
        trouble_steps.try_all(mode.tavern, mode.connect_to, report, journal)
        return report.findings


def try_open_webui(server: str, journal: Journal) -> list[Finding]:
    """Open WebUI with one connection: this server."""
    with programs.open_webui(server, SEEN) as url, open_page(url) as page:
        report = Report("Open WebUI", page, SEEN)
        webui = OpenWebUI(page)
        open_webui_steps.try_all(webui, server, report, journal)
        picture_steps.try_open_webui(webui, report, journal)
        webui.ask_for_chats_only()
        trouble_steps.try_all(webui, webui.connect_to, report, journal)
        return report.findings


CLIENTS: dict[str, Try] = {
    "sillytavern-chat": try_chat,
    "sillytavern-tabby": try_tabby,
    "open-webui": try_open_webui,
}


def main() -> int:
    """Try the clients that the command line names, else all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clients", nargs="*", choices=[*CLIENTS, []], metavar="CLIENT")
    chosen = parser.parse_args().clients or list(CLIENTS)
    SEEN.mkdir(parents=True, exist_ok=True)
    for screenshot in SEEN.glob("*.png"):
        screenshot.unlink()
    findings: list[Finding] = []
    with ExitStack() as stack:
        journal = Journal(SEEN / "journal.jsonl")
        server = stack.enter_context(programs.enginebay(journal.file, SEEN))
        for name in chosen:
            findings += CLIENTS[name](server, journal)
    (SEEN / "findings.md").write_text(table(findings) + "\n", encoding="utf-8")
    print(table(findings))
    return 0 if all(finding.works for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
