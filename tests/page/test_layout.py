"""How the page looks to people with phones, keyboards and screen readers."""

import re
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ServeScripted
from tests.page.support import Gated, answered, open_page, say

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDE = f"{'long' * 100}\n\n```\n{'code ' * 60}\n```\n\n|{'cell ' * 20}|{'cell ' * 20}|\n|-|-|\n"


def fits(page: "Page") -> bool:
    """Whether neither the page nor what scrolls in it is wider than what one sees of it."""
    return bool(
        page.evaluate(
            """["html", "#scroller", "#params", "#status"].every((name) => {
              const { scrollWidth, clientWidth } = document.querySelector(name);
              return scrollWidth <= clientWidth;
            })"""
        )
    )


@pytest.mark.thorough
def test_a_phone_needs_no_sideways_scrolling(page: "Page", serve_scripted: ServeScripted) -> None:
    page.set_viewport_size({"width": 320, "height": 640})
    page.goto(serve_scripted([WIDE], name="a-model-with-" + "a-long-name" * 8).url)
    page.get_by_role("button", name="Send").wait_for()
    page.wait_for_function("document.getElementById('model').value")
    say(page, "word" * 100)
    answered(page)
    assert fits(page)
    page.get_by_text("Settings", exact=True).click()
    assert fits(page)
    assert not page.locator("#status").is_visible()
    page.get_by_role("link", name="Status").click()
    page.locator("#running .card").wait_for()
    assert not page.locator("#composer").is_visible()
    assert fits(page)
    boxes = [page.locator(each).bounding_box() for each in ("#running .card", "#plots")]
    assert all(box and box["x"] >= 0 and box["x"] + box["width"] <= 320 for box in boxes)


def test_every_control_has_a_name(page: "Page", serve_scripted: ServeScripted) -> None:
    open_page(page, serve_scripted(["ok"]))
    say(page, "Hi")
    answered(page)
    for details in page.locator("details").all():
        details.evaluate("each => { each.open = true; }")
    for panel in page.locator(".panel").all():
        panel.evaluate("each => { each.hidden = false; }")
    tree = page.locator("body").aria_snapshot()
    for role in ("button", "textbox", "combobox", "spinbutton", "checkbox", "link"):
        assert not re.search(rf"(?m)^ *- {role}:?$", tree)
        assert page.get_by_role(role, include_hidden=True).count()  # type: ignore[arg-type]


@pytest.mark.thorough
def test_the_conversation_is_told_when_an_answer_has_ended(
    page: "Page", serve_scripted: ServeScripted
) -> None:
    script = Gated(["Hello"])
    open_page(page, serve_scripted(script))
    say(page, "Hi")
    assert page.get_by_role("log").locator("[aria-busy=true]").count() == 1
    script.go_on()
    answered(page)
    assert page.get_by_role("log").locator("[aria-busy=true]").count() == 0


@pytest.mark.thorough
def test_the_whole_chat_by_keyboard(page: "Page", serve_scripted: ServeScripted) -> None:
    open_page(page, serve_scripted(["ok"]))
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the skip link
    page.keyboard.type("line one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("line two")
    page.keyboard.press("Enter")
    answered(page)
    assert page.locator(".message.user .said").inner_text() == "line one\nline two"
    assert page.evaluate("document.activeElement.id") == "prompt"
