"""Conversations as files."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conftest import ServeScripted
from tests.page.support import answered, open_page, say
from tests.page.test_chat import TOOL

if TYPE_CHECKING:
    from playwright.sync_api import Page

CALL = json.dumps({"name": "weather", "arguments": {"city": "Oslo ```"}})
ANSWER = f"<think>A city, ```.\nOne call.</think>I ask.\n<tool_call>{CALL}</tool_call>"
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)


def press(page: "Page", name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def saved(page: "Page", button: str) -> str:
    with page.expect_download() as download:
        press(page, button)
    assert download.value.suggested_filename.startswith("chat 20")
    return Path(download.value.path()).read_text()


def open_file(page: "Page", value: Any) -> None:
    file: Any = {
        "name": "chat.json",
        "mimeType": "application/json",
        "buffer": json.dumps(value).encode(),
    }
    page.locator("#transfer input[type=file]").set_input_files(file)


def test_a_chat_is_saved_and_opened_again(page: "Page", serve_scripted: ServeScripted) -> None:
    def script(prompt: str, index: int) -> list[str]:
        return ["<think>Cold.</think>It is cold."] if "-3 degrees" in prompt else [ANSWER]

    server = serve_scripted(script, reasoning="think", tools="hermes")
    open_page(page, server)
    press(page, "Settings")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_text("Advanced", exact=True).click()
    page.get_by_label("Tools").fill(json.dumps(TOOL))
    say(page, "Weather?")
    answered(page)
    page.get_by_label("Result of weather").fill("-3 degrees")
    press(page, "Send result")
    answered(page, 1)
    press(page, "Export")
    text = saved(page, "Save as JSON")
    chat = json.loads(text)
    assert chat["model"] == "scripted"
    call = chat["messages"][2]["tool_calls"][0]
    arguments = json.dumps({"city": "Oslo ```"})
    assert json.loads(call["function"].pop("arguments")) == json.loads(arguments)
    assert chat["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I ask.\n",
            "reasoning_content": "A city, ```.\nOne call.",
            "tool_calls": [
                {"id": call["id"], "type": "function", "function": {"name": "weather"}},
            ],
        },
        {"role": "tool", "content": "-3 degrees", "tool_call_id": call["id"]},
        {"role": "assistant", "content": "It is cold.", "reasoning_content": "Cold."},
    ]
    assert server.http.post("/v1/chat/completions", content=text).status_code == 200
    assert saved(page, "Save as Markdown") == (
        "## System\n\nBe brief.\n\n## You\n\nWeather?\n\n## Assistant (scripted)\n\n"
        "> *Reasoning*\n>\n> A city, ```.\n> One call.\n\nI ask.\n\nCalls `weather`:\n\n"
        '````json\n{\n  "city": "Oslo ```"\n}\n````\n\n## Tool result\n\n-3 degrees\n\n'
        "## Assistant (scripted)\n\n> *Reasoning*\n>\n> Cold.\n\nIt is cold.\n"
    )
    press(page, "New chat")
    press(page, "Settings")
    page.get_by_label("System prompt").fill("")
    open_file(page, json.loads(text))
    press(page, "Export")
    page.get_by_text("chat.json: 4 messages.").wait_for()
    assert json.loads(saved(page, "Save as JSON")) == json.loads(text)
    page.get_by_role("button", name="Regenerate").last.click()
    answered(page, 1)
    assert page.locator(".message").count() == 4


def test_chats_of_other_programs_are_opened(page: "Page", serve_scripted: ServeScripted) -> None:
    open_page(page, serve_scripted(["ok"]))
    press(page, "Export")
    parts = [{"type": "text", "text": "What"}, {"type": "text", "text": "is it?"}]
    picture = {"type": "image_url", "image_url": {"url": PIXEL}}
    open_file(
        page,
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [*parts, picture]},
            {"role": "assistant", "content": None, "reasoning": "<b>Hm</b>"},
            {"role": "system", "content": "Go on."},
        ],
    )
    page.get_by_text("chat.json: 3 messages.").wait_for()
    assert page.locator(".message").count() == 3
    assert page.locator(".message.user .said").inner_text() == "What\n\nis it?"
    assert page.locator(".message.user img").get_attribute("src") == PIXEL
    assert page.locator(".message.system .said").inner_text() == "Go on."


WRONG: list[tuple[Any, str]] = [
    ({}, "There is no list of messages in this file."),
    (None, "There is no list of messages in this file."),
    ([{"role": "pirate", "content": "x"}], 'messages[0]: role "pirate" is not known.'),
    ([None], "messages[0]: role undefined is not known."),
    (
        [{"role": "user", "content": 7}],
        "messages[0]: content is neither a text nor a list of parts.",
    ),
    (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y"}}]}],
        'messages[0]: a part of type "image_url" cannot be shown here.',
    ),
    ([{"role": "assistant", "tool_calls": 7}], "messages[0]: tool_calls is no list."),
]


def test_files_that_are_no_chats(page: "Page", serve_scripted: ServeScripted) -> None:
    open_page(page, serve_scripted(["ok"]))
    say(page, "Hi")
    answered(page)
    press(page, "Export")
    for value, words in WRONG:
        open_file(page, value)
        page.locator("#transfer .error").get_by_text(words).wait_for()
    assert page.locator(".message").count() == 2
