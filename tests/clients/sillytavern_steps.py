"""What is tried with SillyTavern, the same in all modes that have it."""

import json

from playwright.sync_api import expect

from tests.clients.browser import lengths_while_growing
from tests.clients.journal import Journal
from tests.clients.programs import KEY, unload
from tests.clients.report import Report
from tests.clients.sillytavern import SillyTavern
from tests.clients.sillytavern_modes import ChatCompletion, Mode, TextCompletion

MODELS = {"enginebay-demo", "demo-thinking", "storyteller", "seer", "coder"}


def try_all(mode: Mode, report: Report, journal: Journal) -> None:
    """Every step, each with what it needs from those before."""
    tavern = mode.tavern
    with report.step("a wrong key") as finding:
        mode.connect("sk-wrong")
        expect(tavern.status).to_contain_text(mode.refused)
        finding.seen = tavern.status.inner_text()
        tavern.close_toasts()
    with report.step("connect, list the models") as finding:
        mode.connect(KEY)
        models = mode.models()
        assert set(models) == MODELS, models
        finding.seen = ", ".join(models)
    with report.step("settings"):
        mode.prepare()
        mode.choose("storyteller")
    try_stop(tavern, report, journal)
    try_thought(tavern, report)
    try_continue(tavern, report, journal)
    try_answers(mode, report, journal)
    _try_loading(mode, report)
    _try_panels(mode, report, journal)


def try_stop(tavern: SillyTavern, report: Report, journal: Journal) -> None:
    """An answer of the storyteller, stopped in its middle."""
    with report.step("stream an answer") as finding:
        tavern.send("Tell me a story")
        lengths = lengths_while_growing(tavern.answer, 8)
        finding.seen = f"grew to {lengths} characters"
    with report.step("stop") as finding:
        tavern.stop()
        asked = journal.last()
        assert asked.outcome == "closed", asked.outcome
        finding.seen = f"the engine made {asked.tokens} tokens of {asked.max_tokens}, then aborted"


def try_thought(tavern: SillyTavern, report: Report) -> None:
    """The thought of the storyteller's answer."""
    with report.step("reasoning folded") as finding:
        expect(tavern.thought).to_be_visible()
        assert tavern.thought.get_attribute("open") is None, "open"
        assert "hero" not in tavern.answer.inner_text(), "thought in the answer"
        title = tavern.thought.locator(".mes_reasoning_header_title").inner_text()
        tavern.thought.locator("summary").click()
        expect(tavern.thought.locator(".mes_reasoning")).to_contain_text("I need a hero")
        finding.seen = f'"{title}" over "I need a hero, a road, a river."'


def try_continue(tavern: SillyTavern, report: Report, journal: Journal) -> None:
    """More of the storyteller's answer."""
    with report.step("continue") as finding:
        before = tavern.answer.inner_text()
        tavern.option("continue")
        lengths_while_growing(tavern.answer, 8)
        tavern.stop()
        after = tavern.answer.inner_text()
        assert after.startswith(before[:40]), after[:200]
        assert len(after) > len(before), after[:200]
        assert not journal.last().prompt.endswith(("assistant\n", "<think>\n")), "a new turn"
        finding.seen = f"from {len(before)} to {len(after)} characters, in mid-sentence"


def try_answers(mode: Mode, report: Report, journal: Journal) -> None:
    """Answers of the demo model, and others in their place."""
    tavern = mode.tavern
    with report.step("switch the model") as finding:
        tavern.new_chat()
        mode.choose("enginebay-demo")
        tavern.send("What is 3 plus 4?")
        text = tavern.finished()
        assert "7" in text, text
        finding.seen = f"storyteller, then enginebay-demo: {text!r}"
    with report.step("swipe") as finding:
        tavern.swipe()
        counter = tavern.page.locator("#chat .mes").last.locator(".swipes-counter")
        expect(counter).to_contain_text("2")
        text = tavern.finished()
        finding.seen = f"{counter.inner_text()}, {text!r}"
    with report.step("regenerate") as finding:
        asked = len(journal.asked())
        tavern.option("regenerate")
        text = tavern.finished()
        assert len(journal.asked()) == asked + 1
        finding.seen = repr(text)
    with report.step("impersonate") as finding:
        tavern.option("impersonate")
        box = tavern.page.locator("#send_textarea")
        expect(box).not_to_have_value("")
        expect(tavern.page.locator("#mes_stop")).to_be_hidden()
        finding.seen = f"writes {box.input_value()[:60]!r} as the user"
        box.fill("")


def _try_loading(mode: Mode, report: Report) -> None:
    with report.step("a model that is not loaded") as finding:
        unload(mode.url, "demo-thinking")
        mode.choose("demo-thinking")
        mode.tavern.send("What is 3 plus 4?")
        text = mode.tavern.finished()
        assert "7" in text, text
        finding.seen = f"the message waits while demo-thinking is loaded: {text!r}"
        mode.choose("enginebay-demo")


def _try_panels(mode: Mode, report: Report, journal: Journal) -> None:
    tavern, page = mode.tavern, mode.tavern.page
    with report.step("token probabilities") as finding:
        tavern.open_drawer("user-settings-button")
        tavern.tick("request_token_probabilities")
        tavern.close_drawer("user-settings-button")
        tavern.send("What is 2 plus 5?")
        tavern.finished()
        tavern.option("toggle_logprobs")
        tokens = page.locator("#logprobs_generation_output .logprobs_output_token")
        expect(tokens.first).to_be_visible()
        tokens.nth(1).click()
        candidates = page.locator("#logprobs_selected_top_logprobs .logprobs_top_candidate")
        expect(candidates.first).to_be_visible()
        finding.seen = (
            f"{tokens.count()} tokens, {journal.last().tokens} generated; of the second "
            f"{[text.split() for text in candidates.all_inner_texts()]}"
        )
    with report.step("several answers at once") as finding:
        page.locator("#logprobsViewerClose").click()
        tavern.open_drawer("ai-config-button")
        tavern.set_number(mode.choices_field, 3)
        tavern.close_drawer("ai-config-button")
        tavern.send("Hello!")
        tavern.finished()
        counter = page.locator("#chat .mes").last.locator(".swipes-counter")
        expect(counter).to_contain_text("3")
        finding.seen = f"n = 3: swipes {counter.inner_text()}"
    try_counter(tavern, report)


def try_counter(tavern: SillyTavern, report: Report) -> None:
    """Tokens of a text, and whether anything has gone wrong until now."""
    with report.step("token counter") as finding:
        count, ids = tavern.count_tokens("The quick brown fox.")
        finding.seen = f"{count} tokens: {ids}"
    with report.step("no errors shown"):
        assert not tavern.errors, tavern.errors


def try_chat_only(mode: ChatCompletion, report: Report, journal: Journal) -> None:
    """What only chat completions have."""
    tavern, page = mode.tavern, mode.tavern.page
    tavern.open_drawer("ai-config-button")
    tavern.set_number(mode.choices_field, 1)
    try_tool(tavern, report, journal)
    with report.step("an error of the server") as finding:
        tavern.open_drawer("sys-settings-button")
        field = page.locator("#custom_model_id")
        field.fill("nope")
        field.dispatch_event("input")
        tavern.close_drawer("sys-settings-button")
        tavern.ask("Hello?")
        finding.seen = tavern.error_with("'nope' does not exist")


def try_tool(tavern: SillyTavern, report: Report, journal: Journal) -> None:
    """A tool of an extension, with the demo model."""
    page = tavern.page
    with report.step("a tool is called") as finding:
        tavern.new_chat()
        tavern.open_drawer("ai-config-button")
        tavern.tick("openai_function_calling")
        tavern.close_drawer("ai-config-button")
        page.evaluate(
            """() => SillyTavern.getContext().registerFunctionTool({
                name: 'get_weather',
                displayName: 'Weather',
                description: 'The current weather in a city.',
                parameters: {
                    type: 'object',
                    properties: {city: {type: 'string'}},
                    required: ['city'],
                },
                action: ({city}) => JSON.stringify({city, sky: 'sunny', temperature: 21}),
            })"""
        )
        tavern.send("What is the weather in Paris?")
        expect(page.locator("#chat .mes", has_text="sunny").first).to_be_visible()
        text = tavern.finished()
        assert "<tool_response>" in journal.last().prompt
        finding.seen = f"get_weather, then {text!r}"


def try_text_only(mode: TextCompletion, report: Report) -> None:
    """What only text completions have, as TabbyAPI takes them."""
    tavern, page = mode.tavern, mode.tavern.page
    with report.step("an answer to a JSON schema") as finding:
        tavern.new_chat()
        tavern.open_drawer("ai-config-button")
        tavern.set_number(mode.choices_field, 1)
        schema = {
            "type": "object",
            "properties": {"sum": {"type": "integer"}, "easy": {"type": "boolean"}},
            "required": ["sum", "easy"],
            "additionalProperties": False,
        }
        tavern.set_hidden("tabby_json_schema", json.dumps(schema))
        tavern.close_drawer("ai-config-button")
        tavern.send("What is 3 plus 4?")
        answer = json.loads(tavern.finished())
        assert set(answer) == {"sum", "easy"}, answer
        finding.seen = json.dumps(answer)
    with report.step("an error of the server") as finding:
        tavern.open_drawer("ai-config-button")
        tavern.set_hidden("tabby_json_schema", json.dumps({"type": "nonsense"}))
        tavern.close_drawer("ai-config-button")
        tavern.ask("Hello?")
        finding.seen = tavern.error_with("nonsense")
        tavern.set_hidden("tabby_json_schema", "")
    with report.step("download without an admin key") as finding:
        tavern.open_drawer("sys-settings-button")
        page.locator("#tabby_download_model").click()
        page.locator("dialog[open] input[name=hf_repo_id]").fill("someone/something")
        page.locator("dialog[open] .popup-button-ok").click()
        finding.seen = tavern.error_with("Please use an admin key")
