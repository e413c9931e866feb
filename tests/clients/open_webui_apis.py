"""What is tried with Open WebUI's other connections: Ollama's API, Responses, behind a proxy."""

import json
import ssl
import urllib.request
from collections.abc import Callable
from itertools import islice

from tests.clients import open_webui_steps, picture_steps, trouble_steps
from tests.clients.journal import Journal
from tests.clients.open_webui import OpenWebUI
from tests.clients.open_webui_steps import NO_TOOLS
from tests.clients.programs import KEY
from tests.clients.report import Report
from tests.clients.sillytavern_steps import MODELS
from tests.proxies import CERTIFICATE


def try_ollama(webui: OpenWebUI, server: str, report: Report, journal: Journal) -> None:
    """A connection to Ollama, and none to OpenAI's API."""
    with report.step("a wrong key") as finding:
        finding.seen = webui.connect_ollama(server, "sk-wrong")
        assert "Network Problem" in finding.seen, finding.seen  # whatever the server says
    with report.step("connect, list the models") as finding:
        assert "connection verified" in webui.connect_ollama(server, KEY)
        webui.new_chat()
        models = {name.removesuffix(":latest") for name in webui.models()}
        assert models == MODELS, models
        finding.seen = ", ".join(sorted(models))
    _try_chats(webui, server, webui.connect_ollama, report, journal)


def try_responses(webui: OpenWebUI, server: str, report: Report, journal: Journal) -> None:
    """A connection of the type Responses."""

    def connect(url: str, key: str) -> str:
        return webui.connect(url, key, api_type="Responses")

    with report.step("connect, list the models") as finding:
        assert "connection verified" in connect(server, KEY)
        webui.new_chat()
        models = webui.models()
        assert set(models) == MODELS, models
        finding.seen = ", ".join(models)
    _try_chats(webui, server, connect, report, journal)


def try_behind_proxy(webui: OpenWebUI, server: str, report: Report, journal: Journal) -> None:
    """A connection by HTTPS to a path of a proxy (OPS-4)."""
    open_webui_steps.try_connection(webui, server, report)
    with report.step("pings among the words") as finding:
        lines = _streamed(server)
        assert lines.count(": ping") > 2, lines
        finding.seen = f"{lines.count(': ping')} in the first {len(lines)} lines"
    with report.step("settings"):
        webui.set_default_metadata(NO_TOOLS)
    open_webui_steps.try_stream(webui, report, journal)


def _streamed(server: str) -> list[str]:
    """The first lines of a stream, without empty ones."""
    body = {"model": "storyteller", "messages": [{"role": "user", "content": "Tell"}]}
    request = urllib.request.Request(
        f"{server}/v1/chat/completions",
        json.dumps({**body, "stream": True}).encode(),
        {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    context = ssl.create_default_context(cafile=CERTIFICATE)
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        return [line.decode().strip() for line in islice(answer, 60) if line.strip()]


def _try_chats(
    webui: OpenWebUI,
    server: str,
    connect: Callable[[str, str], str],
    report: Report,
    journal: Journal,
) -> None:
    def connect_to(url: str, key: str) -> None:
        connect(url, key)
        webui.new_chat()
        webui.choose("storyteller")

    with report.step("a prompt that is too long") as finding:
        webui.choose("enginebay-demo")
        webui.send("Hello!")
        finding.seen = webui.error_with("maximum context length")
    with report.step("settings"):
        webui.set_default_metadata(NO_TOOLS)
    open_webui_steps.try_stream(webui, report, journal)
    open_webui_steps.try_answers(webui, server, report, journal)
    picture_steps.try_open_webui(webui, report, journal)
    webui.ask_for_chats_only()
    trouble_steps.try_all(webui, connect_to, report, journal)
