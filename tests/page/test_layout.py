"""How the page looks to people with phones, keyboards and screen readers."""

import re
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ServeScripted
from tests.effort import some
from tests.page.support import Gated, answered, answers, open_page, say
from tests.page.test_manager import FILES, FOUND, MEMORY
from tests.page.test_usage import DATA, LIMITS

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

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
    page.locator("#model option").first.wait_for(state="attached")
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


@pytest.mark.parametrize("panel", some(["Settings", "Prompts", "Export"], ["Settings"]))
def test_the_message_box_is_always_in_reach(
    page: "Page", serve_scripted: ServeScripted, panel: str
) -> None:
    page.set_viewport_size({"width": 360, "height": 560})
    page.goto(serve_scripted(["word " * 500]).url)
    page.locator("#model option").first.wait_for(state="attached")
    say(page, "Hi")
    answered(page)
    page.get_by_role("button", name=panel, exact=True).click()
    box = page.get_by_role("button", name="Send", exact=True).bounding_box()
    assert box
    assert box["y"] + box["height"] <= 560
    assert box["x"] + box["width"] <= 360


def test_views_fit_a_phone(page: "Page", serve_scripted: ServeScripted) -> None:
    answers(page, "v1/usage", {"object": "list", "data": DATA, "limits": LIMITS})
    answers(page, "v1/models/*/memory", MEMORY)
    answers(page, "v1/hub/search", FOUND)
    answers(page, "v1/hub/files", FILES)
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(serve_scripted(["ok"], name="a-model-with-" + "a-long-name" * 8).url)
    page.get_by_role("link", name="Models").click()
    page.get_by_role("button", name="Memory of").click()
    page.locator(".memory table").wait_for()
    page.get_by_label("Search the hub").fill("tiny")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Files of").click()
    page.locator(".files li").first.wait_for()
    for details in page.locator("details").all():
        details.evaluate("each => { each.open = true; }")
    for view in ("models", "usage"):
        page.get_by_role("link", name=view.title()).click()
        page.locator(f"#{view}").wait_for()
        assert page.evaluate(
            """(view) => ["html", `#${view}`].every((name) => {
              const { scrollWidth, clientWidth } = document.querySelector(name);
              return scrollWidth <= clientWidth;
            })""",
            view,
        )
    page.locator(".day-bars svg").wait_for()
    rights = page.locator("#usage svg, .bar a, .bar button").filter(visible=True).all()
    boxes = [each.bounding_box() for each in rights]
    assert all(box and box["x"] >= 0 and box["x"] + box["width"] <= 360 for box in boxes)


def test_the_hub_is_in_reach_on_a_phone(page: "Page", serve_scripted: ServeScripted) -> None:
    """It lies below all models."""
    page.set_viewport_size({"width": 360, "height": 400})
    page.goto(f"{serve_scripted(['ok'], aliases=[f'alias-{n}' for n in range(40)]).url}/#models")
    page.locator("#all-models .card").wait_for()
    jump = page.get_by_role("link", name="Get a model")
    assert in_sight(jump)
    assert not in_sight(page.get_by_label("Search the hub"))
    jump.click()
    assert in_sight(page.get_by_label("Search the hub"))
    assert page.evaluate("document.activeElement.id") == "hub-search"
    assert page.title() == "Models · Enginebay"
    page.set_viewport_size({"width": 1280, "height": 800})
    assert in_sight(page.get_by_label("Search the hub"))
    assert not jump.is_visible()


def in_sight(element: "Locator") -> bool:
    return bool(
        element.evaluate(
            """(element) => {
              const { x, y, width, height } = element.getBoundingClientRect();
              return document.elementFromPoint(x + width / 2, y + height / 2) === element;
            }"""
        )
    )


def test_views_are_told_to_keyboards_and_screen_readers(
    page: "Page", serve_scripted: ServeScripted
) -> None:
    open_page(page, serve_scripted(["ok"]))
    page.get_by_role("link", name="Models").press("Enter")
    page.locator("#models").wait_for()
    assert page.evaluate("document.activeElement.id") == "models"
    assert page.title() == "Models · Enginebay"
    assert page.locator("nav [aria-current=page]").all_inner_texts() == ["Models"]
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "model-filter"
    page.get_by_role("link", name="Skip to the message box").press("Enter")
    page.locator("#chat").wait_for()
    assert page.title() == "Enginebay"
    assert page.evaluate("document.activeElement.id") == "prompt"


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
