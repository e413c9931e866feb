"""Texts of models and servers do nothing on the page but be read."""

import json
from typing import TYPE_CHECKING

import pytest

from enginebay import Backend
from enginebay.config.schema import Config
from enginebay.contract.backend_settings import BackendSettings
from enginebay.contract.errors import BackendUnavailableError
from enginebay.contract.types import ModelInfo
from enginebay.testing import ScriptedEngine
from tests.conftest import ServeScripted
from tests.effort import some
from tests.page.support import answered, open_page, say
from tests.support import InlineBackend, plugins_with, scripted, serve

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = (
    '<img src="x" onerror="alert(1)"><script>alert(2)</script>'
    '<svg onload="alert(3)"></svg><iframe srcdoc="<script>alert(4)</script>"></iframe>'
)
LINKS = (
    "[a](javascript:alert(5)) [b](JaVaScRiPt:alert(6)) [c](data:text/html,"
    "<script>alert(7)</script>)"
    ' [d](https://x.example/" onmouseover="alert(8)) ![e](https://x.example/e.png)'
    " <https://x.example/> [f](https://y.example/f) `<b>code</b>` **<i>bold</i>**"
)
FENCED = f"```html\n{HOSTILE}\n```\n\n| {HOSTILE} |\n|---|\n| [g](vbscript:alert(9)) |\n"
ELEMENTS = "img, script, svg, iframe, object, embed, [onerror], [onload], [srcdoc], [style]"
TOOL = '{"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}'
PLACES = "#transcript, #running, #models, #health, dialog"


@pytest.mark.parametrize("text", some([HOSTILE, LINKS, FENCED], [HOSTILE]))
def test_text_of_a_model(page: "Page", serve_scripted: ServeScripted, text: str) -> None:
    open_page(page, serve_scripted([f"<think>{text}</think>{text}"], reasoning="think"))
    say(page, text)
    answer = answered(page)
    answer.locator("summary").click()
    assert page.locator(f":is({PLACES}) :is({ELEMENTS})").count() == 0
    links = page.locator("#transcript a")
    hrefs = [link.get_attribute("href") or "" for link in links.all()]
    assert all(href.startswith("https://") for href in hrefs)
    assert all("noopener" in (link.get_attribute("rel") or "") for link in links.all())
    assert page.locator(".message.user .said").inner_text().split() == text.split()
    for link in links.all():
        link.hover()


class Broken(InlineBackend):
    """A backend that fails with markup in its words."""

    async def start(self) -> ModelInfo:
        raise BackendUnavailableError(HOSTILE)


@pytest.mark.thorough
def test_names_and_errors_of_models(page: "Page") -> None:
    def broken(settings: BackendSettings) -> Backend:
        return Broken(ScriptedEngine([]))

    models = [
        {"name": HOSTILE, "backend": "scripted", "path": "."},
        {"name": "broken", "backend": "broken", "path": "."},
    ]
    plugins = plugins_with(scripted=scripted(["ok"]), broken=broken)
    with serve(Config.model_validate({"models": models}), plugins) as server:
        open_page(page, server)
        assert page.locator("#running .card h3").first.inner_text() == HOSTILE
        assert page.locator("#running .card .error").last.inner_text() == HOSTILE
        assert page.get_by_role("combobox", name="Model").input_value() == HOSTILE
        page.get_by_role("combobox", name="Model").select_option("broken")
        say(page, "Hi")
        assert HOSTILE in answered(page).locator(".error").inner_text()
        assert page.locator(f":is({PLACES}) :is({ELEMENTS})").count() == 0


def test_tool_calls(page: "Page", serve_scripted: ServeScripted) -> None:
    said = {"name": "f", "arguments": {"a": "<img src=x onerror=alert(1)>"}}
    call = f"<tool_call>{json.dumps(said)}</tool_call>"
    open_page(page, serve_scripted([call], tools="hermes"))
    page.get_by_text("Settings", exact=True).click()
    page.get_by_text("Advanced", exact=True).click()
    page.get_by_label("Tools").fill(TOOL)
    say(page, "Hi")
    assert "<img src=x" in answered(page).locator(".calls pre").inner_text()
    assert page.locator(f":is({PLACES}) :is({ELEMENTS})").count() == 0


@pytest.mark.thorough
def test_a_script_that_makes_markup_of_text_fails(
    page: "Page", serve_scripted: ServeScripted
) -> None:
    open_page(page, serve_scripted(["ok"]))
    made = page.evaluate(
        """() => {
          try { document.body.innerHTML += "<b>x</b>"; return true; } catch { return false; }
        }"""
    )
    assert made is False
