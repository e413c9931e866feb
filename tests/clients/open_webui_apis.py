"""What is tried with Open WebUI's connections to Ollama's API and to Responses."""

from tests.clients import open_webui_steps, picture_steps
from tests.clients.journal import Journal
from tests.clients.open_webui import OpenWebUI
from tests.clients.open_webui_steps import NO_TOOLS
from tests.clients.programs import KEY
from tests.clients.report import Report
from tests.clients.sillytavern_steps import MODELS


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
    _try_chats(webui, server, report, journal)


def try_responses(webui: OpenWebUI, server: str, report: Report, journal: Journal) -> None:
    """A connection of the type Responses."""
    with report.step("connect, list the models") as finding:
        assert "connection verified" in webui.connect(server, KEY, api_type="Responses")
        webui.new_chat()
        models = webui.models()
        assert set(models) == MODELS, models
        finding.seen = ", ".join(models)
    _try_chats(webui, server, report, journal)


def _try_chats(webui: OpenWebUI, server: str, report: Report, journal: Journal) -> None:
    with report.step("a prompt that is too long") as finding:
        webui.choose("enginebay-demo")
        webui.send("Hello!")
        finding.seen = webui.error_with("maximum context length")
    with report.step("settings"):
        webui.set_default_metadata(NO_TOOLS)
    open_webui_steps.try_stream(webui, report, journal)
    open_webui_steps.try_answers(webui, server, report, journal)
    picture_steps.try_open_webui(webui, report, journal)
