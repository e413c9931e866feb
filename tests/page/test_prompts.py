"""The user's prompts, kept in the browser."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ServeScripted
from tests.page.support import answered, open_page, say

if TYPE_CHECKING:
    from playwright.sync_api import Page


def keep(page: "Page", kind: str, name: str) -> None:
    panel = page.locator("#prompts")
    panel.get_by_role("combobox").select_option(label=f"this {kind}")
    panel.get_by_label("Name", exact=True).fill(name)
    panel.get_by_role("button", name="Save").click()


def press(page: "Page", name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def names(page: "Page") -> list[str]:
    return page.locator("#prompts li strong").all_inner_texts()


def test_prompts_are_kept_inserted_renamed_and_deleted(
    page: "Page", serve_scripted: ServeScripted
) -> None:
    prompts: list[str] = []

    def script(prompt: str, index: int) -> list[str]:
        prompts.append(prompt)
        return ["ok"]

    open_page(page, serve_scripted(script))
    press(page, "Settings")
    page.get_by_label("System prompt").fill("Be brief.")
    press(page, "Prompts")
    said = page.locator("#prompts").get_by_role("status")
    page.get_by_text("No prompts are kept in this browser yet.")
    keep(page, "message", "empty")
    said.get_by_text("There is no message to keep.").wait_for()
    keep(page, "system prompt", "Brief")
    said.get_by_text("Saved as Brief.").wait_for()
    box = page.get_by_label("Message", exact=True)
    box.fill("Sum it up")
    keep(page, "message", "Sum <b>up</b>")
    assert names(page) == ["Brief", "Sum <b>up</b>"]
    page.reload()
    page.locator("#running .card").first.wait_for()
    press(page, "Prompts")
    press(page, "Rename Sum <b>up</b>")
    page.get_by_label("New name of Sum <b>up</b>").fill("Sum")
    page.keyboard.press("Enter")
    assert names(page) == ["Brief", "Sum"]
    press(page, "Settings")
    page.get_by_label("System prompt").fill("")
    press(page, "Prompts")
    press(page, "Insert Brief")
    box.fill("First")
    press(page, "Insert Sum")
    assert box.input_value() == "First\n\nSum it up"
    page.keyboard.press("Enter")
    answered(page)
    assert prompts[-1].startswith("<system>Be brief.")
    assert "First\n\nSum it up" in prompts[-1]
    press(page, "Delete Sum")
    assert names(page) == ["Brief"]


def test_prompts_go_to_files_and_come_back(
    page: "Page", serve_scripted: ServeScripted, tmp_path: Path
) -> None:
    open_page(page, serve_scripted(["ok"]))
    press(page, "Prompts")
    page.get_by_label("Message", exact=True).fill("Hello")
    keep(page, "message", "Greeting")
    with page.expect_download() as download:
        press(page, "Export prompts")
    assert download.value.suggested_filename == "enginebay-prompts.json"
    file = tmp_path / "prompts.json"
    download.value.save_as(file)
    exported = json.loads(file.read_text())
    assert exported == {"prompts": [{"kind": "message", "name": "Greeting", "text": "Hello"}]}
    press(page, "Delete Greeting")
    importing = page.locator("#prompts input[type=file]")
    importing.set_input_files(file)
    page.get_by_text("Imported: 1.").wait_for()
    assert names(page) == ["Greeting"]
    another = page.context.new_page()  # which hears of changes here
    another.goto(page.url)
    press(another, "Prompts")
    press(page, "Delete Greeting")
    another.locator("#prompts li").wait_for(state="detached")


WRONG: list[tuple[str, str]] = [
    ("{", "is not valid JSON"),
    ("{}", "There are no prompts in this file."),
    ('[{"kind": "message", "name": "a", "text": "b"}, {"name": 1}]', "prompts[1] needs a kind"),
    ("[null]", "prompts[0] needs a kind"),
    ("[1]", "prompts[0] needs a kind"),
]


def test_files_that_are_no_prompts(page: "Page", serve_scripted: ServeScripted) -> None:
    open_page(page, serve_scripted(["ok"]))
    press(page, "Prompts")
    for text, words in WRONG:
        file: Any = {"name": "x.json", "mimeType": "application/json", "buffer": text.encode()}
        page.locator("#prompts input[type=file]").set_input_files(file)
        page.locator("#prompts .error").get_by_text(words).wait_for()
    assert names(page) == []


@pytest.mark.thorough
def test_escape_closes_the_panel_and_not_the_answer(
    page: "Page", serve_scripted: ServeScripted
) -> None:
    open_page(page, serve_scripted(["ok"]))
    button = page.get_by_role("button", name="Prompts", exact=True)
    button.click()
    assert button.get_attribute("aria-expanded") == "true"
    page.locator("#prompts").get_by_label("Name", exact=True).press("Escape")
    assert not page.locator("#prompts").is_visible()
    assert button.get_attribute("aria-expanded") == "false"
    assert page.evaluate("document.activeElement.textContent") == "Prompts"
    say(page, "Hi")
    answered(page)
