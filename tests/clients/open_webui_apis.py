"""What is tried with Open WebUI's connections to Ollama's API and to Responses."""

from playwright.sync_api import expect

from tests.clients import open_webui_steps, picture_steps
from tests.clients.journal import Journal
from tests.clients.open_webui import OpenWebUI
from tests.clients.open_webui_steps import NO_TOOLS
from tests.clients.programs import KEY
from tests.clients.report import Report
from tests.clients.sillytavern_steps import MODELS


def try_ollama(webui: OpenWebUI, server: str, report: Report, journal: Journal) -> None:
    """A connection to Ollama, and none to OpenAI's API."""
    with report.step("a wrong key"):
        pass


def try_responses(webui: OpenWebUI, server: str, report: Report, journal: Journal) -> None:
    """A connection of the type Responses."""
    with report.step("connect, list the models"):
        pass
