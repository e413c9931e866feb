"""What is tried with Open WebUI."""

import re

from playwright.sync_api import expect

from tests.clients.browser import lengths_while_growing
from tests.clients.journal import Journal
from tests.clients.open_webui import OpenWebUI
from tests.clients.programs import KEY, unload
from tests.clients.report import Report
from tests.clients.sillytavern_steps import MODELS

CATEGORIES = [
    *("time", "user_input", "files", "knowledge", "chats", "subagents", "memory", "web_search"),
    *("image_generation", "code_interpreter", "notes", "channels", "skills", "tasks"),
    *("automations", "calendar", "notifications"),
]
ONE_TOOL = {
    "capabilities": {"usage": True},
    "builtinTools": {category: category == "time" for category in CATEGORIES},
}
NO_TOOLS = {"capabilities": {"usage": True, "builtin_tools": False}}


def try_connection(webui: OpenWebUI, server: str, report: Report) -> None:
    """A connection to OpenAI's API, with a wrong key first."""
    with report.step("a wrong key") as finding:
        finding.seen = webui.connect(server, "sk-wrong")
        assert "this API key is not valid" in finding.seen, finding.seen
    with report.step("connect, list the models") as finding:
        assert "connection verified" in webui.connect(server, KEY)
        webui.new_chat()
        models = webui.models()
        assert set(models) == MODELS, models
        finding.seen = f"{server}: {', '.join(models)}"


def try_all(webui: OpenWebUI, server: str, report: Report, journal: Journal) -> None:
    """Every step, each with what it needs from those before."""
    try_connection(webui, server, report)
    with report.step("a prompt that is too long") as finding:
        webui.choose("enginebay-demo")
        webui.send("Hello!")
        finding.seen = webui.error_with("maximum context length")
    with report.step("settings"):
        webui.set_default_metadata(NO_TOOLS)
    try_stream(webui, report, journal)
    try_answers(webui, server, report, journal)


def try_stream(webui: OpenWebUI, report: Report, journal: Journal) -> None:
    """An answer of the storyteller, stopped and continued."""
    with report.step("stream an answer") as finding:
        webui.new_chat()
        webui.choose("storyteller")
        webui.send("Tell me a story")
        lengths = lengths_while_growing(webui.answer, 8)
        finding.seen = f"grew to {lengths} characters"
    with report.step("stop") as finding:
        webui.stop()
        journal.last()
        stories = [asked for asked in journal.asked() if "### Task" not in asked.prompt]
        assert stories[-1].outcome == "closed", stories[-1].outcome
        finding.seen = f"the engine made {stories[-1].tokens} tokens, then aborted"
    with report.step("reasoning folded") as finding:
        thought = webui.message.get_by_role("button", name=re.compile("^Thought"))
        title = thought.inner_text()
        assert "hero" not in webui.answer.inner_text(), "not folded"
        thought.click()
        expect(webui.answer).to_contain_text("I need a hero")
        finding.seen = f'"{title}" over "I need a hero, a road, a river."'
    with report.step("continue") as finding:
        before = webui.answer.inner_text()
        webui.press("Continue Response")
        lengths = lengths_while_growing(webui.answer, 8)
        webui.stop()
        assert lengths[-1] > len(before)
        journal.last()
        stories = [asked for asked in journal.asked() if "### Task" not in asked.prompt]
        assert not stories[-1].prompt.endswith(("assistant\n", "<think>\n")), "a new turn"
        finding.seen = f"from {len(before)} to {lengths[-1]} characters, in mid-sentence"


def try_answers(webui: OpenWebUI, server: str, report: Report, journal: Journal) -> None:
    """Answers of the demo model, and what is asked beside them."""
    page = webui.page
    with report.step("switch to a model that is not loaded") as finding:
        webui.new_chat()
        unload(server, "demo-thinking")
        webui.choose("demo-thinking")
        webui.send("What is 3 plus 4?")
        text = webui.finished()
        assert "7" in text, text
        finding.seen = f"the message waits while demo-thinking is loaded: {text!r}"
    with report.step("title, tags and follow-ups") as finding:
        journal.last(30)
        tasks = [asked for asked in journal.asked() if "### Task" in asked.prompt]
        kinds = [
            kind
            for kind in ("title", "tags", "follow_ups")
            if any(f'"{kind}"' in task.prompt for task in tasks)
        ]
        assert len(kinds) == 3, kinds
        finding.seen = f"{len(tasks)} extra requests for {', '.join(kinds)}, all answered"
    with report.step("usage") as finding:
        webui.message.hover()
        webui.message.locator("[id^=info-]").hover()
        tooltip = page.locator(".tippy-content, [role=tooltip]").last
        expect(tooltip).to_contain_text(re.compile("(completion|output)_tokens|eval_count"))
        finding.seen = " ".join(tooltip.inner_text().split())[:250]
    with report.step("regenerate") as finding:
        asked = len(journal.asked())
        webui.regenerate()
        expect(webui.message).to_contain_text("2/2")
        text = webui.finished()
        assert len(journal.asked()) > asked
        finding.seen = repr(text)
    with report.step("a tool is called") as finding:
        webui.set_default_metadata(ONE_TOOL)
        webui.new_chat()
        webui.choose("enginebay-demo")
        before = len(journal.asked())
        webui.send("What time is it now?")
        text = webui.finished()
        last = journal.last()
        since = journal.asked()[before:]
        assert any("<tool_response>" in asked.prompt for asked in since), last.prompt
        finding.seen = repr(text)
