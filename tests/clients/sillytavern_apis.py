"""What is tried with SillyTavern's types that speak KoboldAI's, Ollama's and Anthropic's APIs."""

from playwright.sync_api import expect

from tests.clients import picture_steps, sillytavern_steps, trouble_steps
from tests.clients.journal import Journal
from tests.clients.programs import KEY
from tests.clients.report import Report
from tests.clients.sillytavern_modes import Claude, KoboldAI, KoboldCpp, Mode, Ollama

OF_NO_KEY = {"storyteller", "enginebay-demo", "coder"}


def try_koboldai(mode: KoboldAI, without_keys: str, report: Report, journal: Journal) -> None:
    """KoboldAI Classic. KOB-8."""
    _refused(mode, report)
    mode.url = without_keys
    with report.step("connect") as finding:
        mode.connect()
        [finding.seen] = mode.models()
        assert "enginebay/storyteller" in finding.seen, finding.seen
    _try_kobold(mode, report, journal)
    tavern = mode.tavern
    with report.step("an error of the server") as finding:
        tavern.open_drawer("ai-config-button")
        tavern.set_hidden("grammar", "root ::= nonsense")
        tavern.close_drawer("ai-config-button")
        tavern.ask("Hello?")
        finding.seen = tavern.error_with("nonsense")
        tavern.set_hidden("grammar", "")


def try_koboldcpp(mode: KoboldCpp, without_keys: str, report: Report, journal: Journal) -> None:
    """KoboldCpp, with a key and without one. KOB-8."""
    _refused(mode, report)
    tavern = mode.tavern
    with report.step("connect with a key") as finding:
        mode.connect(KEY)
        [finding.seen] = mode.models()
        mode.prepare()
        tavern.ask("What is 3 plus 4?")
        expect(tavern.answer).to_contain_text("7")
        finding.seen += f", {tavern.finished()!r}"
    sillytavern_steps.try_counter(tavern, report)
    mode.url = without_keys
    with report.step("connect without a key") as finding:
        mode.connect()
        expect(tavern.status).to_contain_text("storyteller")
        [finding.seen] = mode.models()
        tavern.new_chat()
    _try_kobold(mode, report, journal)
    mode.prepare()
    trouble_steps.try_all(tavern, mode.connect_to, report, journal)


def _refused(mode: Mode, report: Report) -> None:
    with report.step("a server that wants another key") as finding:
        mode.connect("sk-wrong")
        expect(mode.tavern.status).to_contain_text(mode.refused)
        finding.seen = mode.tavern.status.inner_text()
        mode.tavern.close_toasts()


def _try_kobold(mode: KoboldCpp, report: Report, journal: Journal) -> None:
    tavern = mode.tavern
    with report.step("settings"):
        mode.prepare()
    sillytavern_steps.try_stop(tavern, report, journal)
    sillytavern_steps.try_thought(tavern, report)
    sillytavern_steps.try_continue(tavern, report, journal)
    with report.step("an answer of 100 tokens, swipe") as finding:
        tavern.open_drawer("ai-config-button")
        tavern.set_number("amount_gen_counter", 100)
        tavern.close_drawer("ai-config-button")
        tavern.new_chat()
        tavern.send("Tell me a story")
        text = tavern.finished()
        assert journal.last().tokens == 100, journal.last().tokens
        tavern.swipe()
        counter = tavern.page.locator("#chat .mes").last.locator(".swipes-counter")
        expect(counter).to_contain_text("2")
        tavern.finished()
        finding.seen = f"{text!r}, {counter.inner_text()}"
    with report.step("without streaming") as finding:
        tavern.open_drawer("ai-config-button")
        tavern.page.locator(f"#{mode.stream_box}").evaluate("box => box.click()")
        tavern.close_drawer("ai-config-button")
        tavern.send("Tell me a story")
        finding.seen = repr(tavern.finished())
        assert journal.last().tokens == 100, journal.last().tokens
    sillytavern_steps.try_counter(tavern, report)


def try_ollama(mode: Ollama, without_keys: str, report: Report, journal: Journal) -> None:
    """Text Completion with Ollama's type."""
    _refused(mode, report)
    mode.url = without_keys
    with report.step("connect, list the models") as finding:
        mode.connect()
        models = mode.models()
        assert set(models) == OF_NO_KEY, models
        finding.seen = ", ".join(models)
    with report.step("settings"):
        mode.prepare()
        mode.choose("storyteller")
    tavern = mode.tavern
    sillytavern_steps.try_stop(tavern, report, journal)
    sillytavern_steps.try_thought(tavern, report)
    sillytavern_steps.try_continue(tavern, report, journal)
    sillytavern_steps.try_answers(mode, report, journal)
    with report.step("download of a model that is served") as finding:
        page = tavern.page
        tavern.open_drawer("sys-settings-button")
        page.locator("#ollama_download_model").click()
        page.locator("dialog[open] textarea, dialog[open] input[type=text]").first.fill("coder")
        page.locator("dialog[open] .popup-button-ok").click()
        done = page.locator("#toast-container .toast-success").first
        expect(done).to_be_visible()
        finding.seen = " ".join(done.inner_text().split())
        tavern.close_drawer("sys-settings-button")
    sillytavern_steps.try_counter(tavern, report)


def try_claude(mode: Claude, report: Report, journal: Journal) -> None:
    """Chat Completion, source Claude, with this server for a reverse proxy."""
    tavern = mode.tavern
    with report.step("a wrong key") as finding:
        mode.connect("sk-wrong")
        mode.prepare()
        mode.choose("storyteller")
        tavern.ask("Hello?")
        finding.seen = tavern.error_with("API key")
    with report.step("connect") as finding:
        mode.connect(KEY)
        finding.seen = tavern.status.inner_text()
        tavern.close_drawer("sys-settings-button")
        tavern.new_chat()
    sillytavern_steps.try_stop(tavern, report, journal)
    with report.step("no thought that was not asked for"):
        expect(tavern.thought).to_be_hidden()
        assert "hero" not in tavern.answer.inner_text()
    sillytavern_steps.try_continue(tavern, report, journal)
    with report.step("reasoning effort") as finding:
        tavern.new_chat()
        tavern.page.locator("#openai_reasoning_effort").evaluate(
            "field => { field.value = 'low'; $(field).trigger('input').trigger('change'); }"
        )
        finding.seen = tavern.page.locator("#openai_reasoning_effort").input_value()
    sillytavern_steps.try_stop(tavern, report, journal)
    sillytavern_steps.try_thought(tavern, report)
    sillytavern_steps.try_answers(mode, report, journal)
    sillytavern_steps.try_tool(tavern, report, journal)
    picture_steps.try_inline(mode, report, journal)
    with report.step("no errors shown"):
        assert not tavern.errors, tavern.errors
