"""Ending the thought of an answer (OPS-8)."""

from typing import TYPE_CHECKING

from tests.conftest import ServeScripted
from tests.page.support import ANSWER, Gated, answered, answers, open_page, say

if TYPE_CHECKING:
    from playwright.sync_api import Page

THOUGHT = ["<think>Hm, ", "well.", "</think>", "Yes."]


def test_thinking_is_ended_by_a_button(page: "Page", serve_scripted: ServeScripted) -> None:
    script = Gated(THOUGHT)
    open_page(page, serve_scripted(script, reasoning="think"))
    asked: list[str] = []

    def end(route: object) -> None:
        asked.append(route.request.url)  # type: ignore[attr-defined]
        route.fulfill(json={"object": "request.reasoning", "ended": 1})  # type: ignore[attr-defined]

    page.route("**/v1/requests/*/end_reasoning", end)
    say(page, "?")
    button = page.get_by_role("button", name="End thinking")
    assert not button.is_visible()
    script.go_on(2)
    button.click()
    button.wait_for(state="hidden")
    running = page.evaluate("fetch('v1/requests').then((answer) => answer.json())")
    assert asked == [f"{page.url}v1/requests/{running['data'][0]['id']}/end_reasoning"]
    script.go_on(2)
    assert answered(page).locator(".said").inner_text() == "Yes."
    assert not button.is_visible()


def test_a_long_thought_is_followed(page: "Page", serve_scripted: ServeScripted) -> None:
    script = Gated(["<think>", *["Hm.\n\n"] * 60, "</think>Yes."])
    open_page(page, serve_scripted(script, reasoning="think"))
    say(page, "?")
    script.go_on(31)
    thought = page.locator(f"{ANSWER} details.reasoning .text")
    thought.locator("p").nth(29).wait_for()
    from_end = "each => each.scrollHeight - each.clientHeight - each.scrollTop"
    assert thought.evaluate(from_end) < 2
    thought.evaluate("each => { each.scrollTop = 0; }")
    script.go_on(30)
    thought.locator("p").nth(59).wait_for()
    assert thought.evaluate("each => each.scrollTop") == 0
    script.go_on()
    answered(page)


def test_a_thought_that_cannot_be_ended(page: "Page", serve_scripted: ServeScripted) -> None:
    script = Gated(THOUGHT * 2)
    open_page(page, serve_scripted(script, reasoning="think"))
    answers(page, "v1/requests/*/end_reasoning", "this model cannot stop here", status=409)
    say(page, "?")
    script.go_on(2)
    page.get_by_role("button", name="End thinking").click()
    page.locator(f"{ANSWER} .note").get_by_text("this model cannot stop here").wait_for()
    assert page.locator(ANSWER).get_by_role("alert").count() == 0
    script.go_on(6)
    assert "this model" not in answered(page).locator(".note").inner_text()
