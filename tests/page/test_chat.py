"""Chatting on the page."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ServeScripted
from tests.effort import some
from tests.page.support import ANSWER, Gated, answered, open_page, say

if TYPE_CHECKING:
    from playwright.sync_api import Page

TOOL = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'


def test_an_answer_appears_bit_by_bit(page: "Page", serve_scripted: ServeScripted) -> None:
    script = Gated(["One", " two", " three"])
    open_page(page, serve_scripted(script))
    say(page, "Count")
    text = page.locator(f"{ANSWER} .said")
    for said in ("One", "One two", "One two three"):
        script.go_on()
        page.locator(f"{ANSWER} .said", has_text=said).wait_for()
        assert text.inner_text() == said
    note = answered(page).locator(".note").inner_text()
    assert "answer 14 ·" in note  # one token a character, and the end
    assert "tokens/s" in note
    assert page.locator(".message.user .said").inner_text() == "Count"


@pytest.mark.thorough
def test_reasoning_is_open_while_it_grows_and_folds(
    page: "Page", serve_scripted: ServeScripted
) -> None:
    script = Gated(["<think>Hm, ", "well.", "</think>", "Yes."])
    open_page(page, serve_scripted(script, reasoning="think"))
    say(page, "?")
    thought = page.locator(f"{ANSWER} details.reasoning")
    script.go_on(2)
    thought.get_by_text("Hm, well.").wait_for()
    assert thought.get_attribute("open") is not None
    script.go_on(2)
    answer = answered(page)
    assert thought.get_attribute("open") is None
    assert not thought.get_by_text("Hm, well.").is_visible()
    assert answer.locator(".said").inner_text() == "Yes."
    assert "reasoning)" in answer.locator(".note").inner_text()
    thought.locator("summary").click()
    assert thought.get_by_text("Hm, well.").is_visible()


def test_tool_calls_and_their_results(page: "Page", serve_scripted: ServeScripted) -> None:
    def script(prompt: str, index: int) -> list[str]:
        return ["It is cold."] if "<tool>-3 degrees" in prompt else [CALL]

    open_page(page, serve_scripted(script, tools="hermes"))
    page.get_by_text("Settings", exact=True).click()
    page.get_by_text("Advanced", exact=True).click()
    page.get_by_label("Tools").fill("[{}]")
    assert page.get_by_label("Tools").locator("+ .problem").inner_text()
    page.get_by_label("Tools").fill(json.dumps(TOOL))
    say(page, "Weather?")
    answer = answered(page)
    assert answer.locator(".calls strong").inner_text() == "weather"
    assert json.loads(answer.locator(".calls pre").inner_text()) == {"city": "Oslo"}
    page.get_by_label("Result of weather").fill("-3 degrees")
    page.get_by_role("button", name="Send result").click()
    assert answered(page, 1).locator(".said").inner_text() == "It is cold."


@pytest.mark.parametrize("how", some(["button", "key"], ["key"]))
def test_stop_aborts_the_request(page: "Page", serve_scripted: ServeScripted, how: str) -> None:
    script = Gated(["So", " far", " and no further"])
    server = serve_scripted(script)
    open_page(page, server)
    say(page, "Go on")
    script.go_on()
    page.locator(f"{ANSWER} .said", has_text="So").wait_for()
    if how == "button":
        page.get_by_role("button", name="Stop").click()
    else:
        page.keyboard.press("Escape")
    assert answered(page).locator(".note").inner_text() == "Stopped."
    assert script.closed.wait(20)
    page.wait_for_function("fetch('v1/stats').then(r => r.json()).then(s => !s.models[0].running)")
    script.go_on(3)
    say(page, "Again")
    assert answered(page, 1).locator(".said").inner_text() == "So far and no further"


def numbered() -> Iterator[str]:
    return (f"answer {number}" for number in range(100))


def test_regenerate_edit_and_delete(page: "Page", serve_scripted: ServeScripted) -> None:
    answers = numbered()
    prompts: list[str] = []

    def script(prompt: str, index: int) -> list[str]:
        prompts.append(prompt)
        return [next(answers)]

    open_page(page, serve_scripted(script))
    say(page, "first")
    answered(page)
    say(page, "second")
    answered(page, 1)
    messages = page.locator(".message")
    messages.nth(1).get_by_role("button", name="Regenerate").click()
    page.get_by_text("answer 2").wait_for()
    assert messages.count() == 2  # what followed is gone
    assert "second" not in prompts[-1]
    messages.nth(0).get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the message").fill("other")
    page.get_by_role("button", name="Send again").click()
    page.get_by_text("answer 3").wait_for()
    answered(page)
    assert "<user>other" in prompts[-1]
    assert "first" not in prompts[-1]
    messages.nth(1).get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the message").fill("my words")
    page.get_by_role("button", name="Save").click()
    say(page, "third")
    answered(page, 1)
    assert "<assistant>my words" in prompts[-1]
    messages.nth(0).get_by_role("button", name="Delete").click()
    assert messages.count() == 3
    page.reload()  # it is kept for this tab
    page.get_by_text("my words").wait_for()
    page.get_by_role("button", name="New chat").click()
    assert messages.count() == 0


@pytest.mark.thorough
def test_esc_stops_an_answer_wherever_one_is(page: "Page", serve_scripted: ServeScripted) -> None:
    script = Gated(["So far", " and no further"])
    open_page(page, serve_scripted(script))
    say(page, "Hi")
    script.go_on(2)
    answered(page)
    page.get_by_role("button", name="Regenerate").click()  # goes with its message
    script.go_on()
    page.locator(ANSWER).get_by_text("So far").wait_for()
    page.keyboard.press("Escape")
    assert answered(page).locator(".note").inner_text() == "Stopped."
    assert script.closed.wait(20)


def test_settings_are_sent_and_kept(page: "Page", serve_scripted: ServeScripted) -> None:
    prompts: list[str] = []

    def script(prompt: str, index: int) -> list[str]:
        prompts.append(prompt)
        return ["b", *"a" * 50]

    open_page(page, serve_scripted(script))
    page.get_by_text("Settings", exact=True).click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("max tokens").fill("3")
    page.get_by_text("Advanced", exact=True).click()
    page.get_by_label("Other fields").fill('{"stop": ["aa"]}')
    say(page, "Hi")
    assert "Cut off" not in answered(page).locator(".note").inner_text()
    assert prompts[-1].startswith("<system>Be brief.")
    page.get_by_label("Other fields").fill("")
    page.reload()
    page.locator("#running .card").first.wait_for()
    say(page, "Hi")
    answer = answered(page, 1)
    assert answer.locator(".said").inner_text() == "baa"
    assert "Cut off" in answer.locator(".note").inner_text()


@pytest.mark.thorough
def test_models_are_picked(page: "Page", serve_scripted: ServeScripted) -> None:
    open_page(page, serve_scripted(["ok"]))
    assert page.get_by_role("combobox", name="Model").input_value() == "scripted"


def test_errors_are_said_in_words(page: "Page", serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], engine={"context_length": 60})
    open_page(page, server)
    say(page, "x" * 80)
    error = answered(page).locator(".error")
    assert "60 tokens" in error.inner_text()
    busy = {"error": {"message": "the queue of the model is full"}}

    def refuse(route: object) -> None:
        route.fulfill(status=429, headers={"Retry-After": "7"}, json=busy)  # type: ignore[attr-defined]

    page.route("**/v1/chat/completions", refuse)
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_text("Try again in 7 s.").wait_for()
    assert "the queue of the model is full" in error.inner_text()
    piece = 'data: {"choices": [{"index": 0, "delta": {"content": "So far"}}]}\n\n'
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=piece))
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_text("The connection was lost before the answer was complete.").wait_for()
    assert answered(page).locator(".said").inner_text() == "So far"
    page.route("**/v1/chat/completions", lambda route: route.abort())
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_text("The server cannot be reached.").wait_for()


@pytest.mark.thorough
def test_an_engine_that_breaks_in_mid_stream(page: "Page", serve_scripted: ServeScripted) -> None:
    def script(prompt: str, index: int) -> Iterator[str]:
        yield "So far"
        raise RuntimeError("no more")

    open_page(page, serve_scripted(script))
    say(page, "Hi")
    answer = answered(page)
    assert answer.locator(".said").inner_text() == "So far"
    assert answer.locator(".error").inner_text()


@pytest.mark.thorough
def test_a_key_is_asked_for_and_remembered_only_if_wanted(
    page: "Page", serve_scripted: ServeScripted
) -> None:
    server = serve_scripted(["ok"], server={"api_keys": ["secret"]})
    page.goto(server.url)
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Key", exact=True).fill("“secret”")  # as a word processor has it
    page.keyboard.press("Enter")
    dialog.get_by_text("it has characters that cannot be sent").wait_for()
    dialog.get_by_label("Key", exact=True).fill("wrong")
    page.keyboard.press("Enter")
    dialog.get_by_text("this API key is not valid", exact=True).wait_for()
    dialog.get_by_label("Key", exact=True).fill("secret")
    page.keyboard.press("Enter")
    page.locator("#running .card").wait_for()
    say(page, "Hi")
    assert answered(page).locator(".said").inner_text() == "ok"
    assert page.evaluate("sessionStorage['enginebay-key']") == "secret"
    assert page.evaluate("localStorage.length") == 0
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Key").click()
    dialog.get_by_label("Key", exact=True).fill("secret")
    dialog.get_by_label("Remember on this device").check()
    dialog.get_by_role("button", name="Use key").click()
    another = page.context.new_page()
    another.goto(server.url)
    another.locator("#running .card").wait_for()
    another.get_by_role("button", name="Key").click()
    another.get_by_role("button", name="Forget").click()
    another.get_by_role("dialog").get_by_text("This server requires an API key").wait_for()
    assert another.evaluate("localStorage.length") == 0
