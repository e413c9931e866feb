"""Run real clients against this server, web pages in headless Chromium, and say what works.

    make test-clients
    python3 start.py python -m tests.clients.run sillytavern-chat open-webui

Installs the clients into `.clients/installed/` first, which takes a while and gigabytes.
Screenshots, logs and `findings.md` are left in `.clients/seen/`. Leaves with 1 if something
does not work.
"""

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

from tests.clients import (
    ai_sdk_steps,
    codex_steps,
    open_webui_apis,
    open_webui_steps,
    picture_steps,
    programs,
    sillytavern_apis,
    sillytavern_steps,
    trouble_steps,
)
from tests.clients.browser import open_page
from tests.clients.codex_steps import Codex
from tests.clients.install import SEEN
from tests.clients.journal import Journal
from tests.clients.open_webui import OpenWebUI
from tests.clients.report import Finding, Report, table
from tests.clients.sillytavern import SillyTavern
from tests.clients.sillytavern_modes import (
    ChatCompletion,
    Claude,
    KoboldAI,
    KoboldCpp,
    Mode,
    Ollama,
    TextCompletion,
)
from tests.proxies import CERTIFICATE, PROXIES

Try = Callable[[str, Journal], list[Finding]]
ModeT = TypeVar("ModeT", bound=Mode)


@contextmanager
def sillytavern(mode: type[ModeT], server: str) -> Iterator[tuple[ModeT, Report]]:
    """SillyTavern in one of its modes, and a report about it."""
    with programs.sillytavern(SEEN) as url, open_page(url) as page:
        made = mode(SillyTavern(page), server)
        yield made, Report(made.name, page, SEEN)


def without_keys(journal: Journal) -> AbstractContextManager[str]:
    """Another server of ours, for clients that send no key."""
    return programs.enginebay(journal.file, SEEN, config="open")


def try_chat(server: str, journal: Journal) -> list[Finding]:
    """SillyTavern with chat completions."""
    with sillytavern(ChatCompletion, server) as (mode, report):
        sillytavern_steps.try_all(mode, report, journal)
        sillytavern_steps.try_chat_only(mode, report, journal)
        picture_steps.try_sillytavern(mode, report, journal)
        trouble_steps.try_all(mode.tavern, mode.connect_to, report, journal)
        return report.findings


def try_tabby(server: str, journal: Journal) -> list[Finding]:
    """SillyTavern with text completions, as if of TabbyAPI."""
    with sillytavern(TextCompletion, server) as (mode, report):
        sillytavern_steps.try_all(mode, report, journal)
        sillytavern_steps.try_text_only(mode, report)
        trouble_steps.try_all(mode.tavern, mode.connect_to, report, journal)
        return report.findings


def try_koboldai(server: str, journal: Journal) -> list[Finding]:
    """SillyTavern with KoboldAI Classic."""
    with without_keys(journal) as other, sillytavern(KoboldAI, server) as (mode, report):
        sillytavern_apis.try_koboldai(mode, other, report, journal)
        return report.findings


def try_koboldcpp(server: str, journal: Journal) -> list[Finding]:
    """SillyTavern with text completions, as if of KoboldCpp."""
    with without_keys(journal) as other, sillytavern(KoboldCpp, server) as (mode, report):
        sillytavern_apis.try_koboldcpp(mode, other, report, journal)
        return report.findings


def try_ollama(server: str, journal: Journal) -> list[Finding]:
    """SillyTavern with text completions, as if of Ollama."""
    with without_keys(journal) as other, sillytavern(Ollama, server) as (mode, report):
        sillytavern_apis.try_ollama(mode, other, report, journal)
        return report.findings


def try_claude(server: str, journal: Journal) -> list[Finding]:
    """SillyTavern with the source Claude and a reverse proxy."""
    with sillytavern(Claude, server) as (mode, report):
        sillytavern_apis.try_claude(mode, report, journal)
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


def try_open_webui_ollama(server: str, journal: Journal) -> list[Finding]:
    """Open WebUI with a connection to Ollama."""
    with programs.open_webui(server, SEEN, ollama=True) as url, open_page(url) as page:
        report = Report("Open WebUI, Ollama", page, SEEN)
        open_webui_apis.try_ollama(OpenWebUI(page), server, report, journal)
        return report.findings


def try_open_webui_responses(server: str, journal: Journal) -> list[Finding]:
    """Open WebUI with a connection of the type Responses."""
    with programs.open_webui(server, SEEN) as url, open_page(url) as page:
        report = Report("Open WebUI, Responses", page, SEEN)
        open_webui_apis.try_responses(OpenWebUI(page), server, report, journal)
        return report.findings


def try_open_webui_behind_proxy(server: str, journal: Journal) -> list[Finding]:
    """Open WebUI with a server below a path of nginx, and of Caddy, with TLS."""
    findings = []
    for name in PROXIES:
        client = f"Open WebUI behind {name}"
        if not shutil.which(name):
            missing = Report(client, None, SEEN)
            missing.add([Finding(client, "start", f"{name} is not installed: apt install {name}")])
            findings += missing.findings
            continue
        with (
            programs.proxied(name, journal.file, SEEN) as behind,
            programs.open_webui(behind, SEEN, authority=CERTIFICATE) as url,
            open_page(url) as page,
        ):
            report = Report(client, page, SEEN)
            open_webui_apis.try_behind_proxy(OpenWebUI(page), behind, report, journal)
            findings += report.findings
    return findings


def try_codex(server: str, journal: Journal) -> list[Finding]:
    """Codex's command line."""
    report = Report("Codex", None, SEEN)
    codex = Codex(SEEN)
    codex_steps.try_provider(codex, server, report, journal)
    with without_keys(journal) as other:
        codex_steps.try_oss(codex, other, report)
    return report.findings


def try_ai_sdk(server: str, journal: Journal) -> list[Finding]:
    """The AI SDK on Node.js, with Responses and with Messages."""
    report = Report("AI SDK", None, SEEN)
    ai_sdk_steps.try_all(server, report, journal)
    return report.findings


CLIENTS: dict[str, Try] = {
    "sillytavern-chat": try_chat,
    "sillytavern-tabby": try_tabby,
    "sillytavern-koboldai": try_koboldai,
    "sillytavern-koboldcpp": try_koboldcpp,
    "sillytavern-ollama": try_ollama,
    "sillytavern-claude": try_claude,
    "open-webui": try_open_webui,
    "open-webui-ollama": try_open_webui_ollama,
    "open-webui-responses": try_open_webui_responses,
    "open-webui-behind-proxy": try_open_webui_behind_proxy,
    "codex": try_codex,
    "ai-sdk": try_ai_sdk,
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
