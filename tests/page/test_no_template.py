"""REAL-12: a model without a chat template on the page."""

from typing import TYPE_CHECKING

from tests.conftest import ServeScripted
from tests.page.support import answered, open_page, say

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_a_base_model_continues_text_until_it_has_a_template(
    page: "Page", serve_scripted: ServeScripted
) -> None:
    prompts: list[str] = []

    def script(prompt: str, index: int) -> list[str]:
        prompts.append(prompt)
        return [" a time"]

    server = serve_scripted(script, engine={"chat_template": None})
    open_page(page, server)
    line = page.locator("#template")
    line.get_by_text("scripted has no chat template. It continues the text").wait_for()
    say(page, "Once upon")
    assert answered(page).locator(".said").inner_text() == "a time"
    say(page, "and")
    answered(page, 1)
    assert prompts == ["Once upon", "Once upon\n a time\nand"]
    line.get_by_role("button", name="chatml", exact=True).click()
    line.wait_for(state="hidden")
    say(page, "Hello")
    answered(page, 2)
    assert prompts[2].endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
