"""What is tried with pictures: each reaches the model as it was drawn, and the answer shows it.

MM-12.
"""

from pathlib import Path

from PIL import Image
from playwright.sync_api import expect

from tests.clients.install import SEEN
from tests.clients.journal import Asked, Journal
from tests.clients.open_webui import OpenWebUI
from tests.clients.open_webui_steps import NO_TOOLS
from tests.clients.report import Report
from tests.clients.sillytavern_modes import ChatCompletion

RED = "I see a red picture of 512 x 256."
REFUSED = "this model takes text only"


def drawn() -> Path:
    """A red picture."""
    file = SEEN / "red.png"
    Image.new("RGB", (512, 256), "red").save(file)
    return file


def last(journal: Journal) -> Asked:
    """The last request but for titles and the like, when all have ended."""
    journal.last(30)
    return [asked for asked in journal.asked() if "### Task" not in asked.prompt][-1]


def try_sillytavern(mode: ChatCompletion, report: Report, journal: Journal) -> None:
    """Every step, after those without pictures."""
    tavern = mode.tavern
    with report.step("image captioning") as finding:
        tavern.new_chat()
        mode.choose("seer")
        tavern.set_up_captions()
        text = tavern.caption(drawn())
        assert f"sends Assistant a picture that contains: {RED}" in text, text
        assert last(journal).media == ("image/png",)
        assert "What's in this image?" in last(journal).prompt
        finding.seen = repr(text)
    try_inline(mode, report, journal)
    with report.step("a picture for a model that takes none") as finding:
        mode.choose("storyteller")
        tavern.ask("And now?")
        finding.seen = tavern.error_with(REFUSED)
        tavern.new_chat()


def try_inline(mode: ChatCompletion, report: Report, journal: Journal) -> None:
    """A picture that is sent as a part of a message."""
    tavern = mode.tavern
    with report.step("a picture with a message") as finding:
        tavern.new_chat()
        mode.choose("seer")
        tavern.open_drawer("ai-config-button")
        tavern.tick("openai_media_inlining")
        tavern.close_drawer("ai-config-button")
        tavern.attach(drawn())
        tavern.send("What is it?")
        text = tavern.finished()
        assert text == RED, text
        asked = last(journal)
        assert len(asked.media) == 1, asked.media
        assert "What is it?" in asked.prompt
        expect(tavern.page.locator("#chat .mes img.mes_img").first).to_be_visible()
        finding.seen = f"{asked.media[0]}, then {text!r}"


def try_open_webui(webui: OpenWebUI, report: Report, journal: Journal) -> None:
    """Every step, after those without pictures."""
    with report.step("a picture with a message") as finding:
        webui.set_default_metadata(NO_TOOLS)
        webui.new_chat()
        webui.choose("seer")
        webui.attach(drawn())
        webui.send("What is it?")
        text = webui.finished()
        assert text == RED, text
        asked = last(journal)
        assert len(asked.media) == 1, asked.media
        assert "What is it?" in asked.prompt
        expect(webui.page.locator(".user-message img").first).to_be_visible()
        finding.seen = f"{asked.media[0]}, then {text!r}"
    with report.step("a picture in the conversation so far") as finding:
        webui.send("And now?")
        text = webui.finished()
        assert text == RED, text
        assert len(last(journal).media) == 1
        finding.seen = repr(text)
    with report.step("a picture for a model that takes none") as finding:
        webui.choose("storyteller")
        webui.send("And now?")
        finding.seen = webui.error_with(REFUSED)
