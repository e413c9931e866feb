"""SillyTavern, driven through its page: chat completions and text completions alike."""

from contextlib import suppress
from pathlib import Path

from playwright.sync_api import Error, Locator, Page, expect

from tests.clients.browser import wait_until_still


class SillyTavern:
    """A page of SillyTavern that has just been opened for the first time."""

    def __init__(self, page: Page) -> None:
        self.page = page
        page.locator("dialog[open] .popup-button-ok").click(timeout=60_000)
        expect(page.locator("dialog[open]")).to_have_count(0)

    @property
    def answer(self) -> Locator:
        """The text of the last message."""
        return self.page.locator("#chat .mes").last.locator(".mes_text")

    @property
    def thought(self) -> Locator:
        """The folded reasoning of the last message."""
        return self.page.locator("#chat .mes").last.locator(".mes_reasoning_details")

    @property
    def status(self) -> Locator:
        """The line that says whether SillyTavern is connected."""
        return self.page.locator(".online_status_text:visible").first

    @property
    def stop_button(self) -> Locator:
        """Shown while an answer comes."""
        return self.page.locator("#mes_stop")

    @property
    def errors(self) -> list[str]:
        """Errors that the page shows."""
        return self.page.locator("#toast-container .toast-error").all_inner_texts()

    def open_drawer(self, id: str) -> None:
        """Open one of the drawers at the top, unless it is open."""
        drawer = self.page.locator(f"#{id}")
        if drawer.locator(".drawer-icon.openIcon").count() == 0:
            drawer.locator(".drawer-toggle").click()
            expect(drawer.locator(".drawer-icon.openIcon")).to_have_count(1)

    def close_drawer(self, id: str) -> None:
        """Close it."""
        drawer = self.page.locator(f"#{id}")
        if drawer.locator(".drawer-icon.openIcon").count():
            drawer.locator(".drawer-toggle").click()
            expect(drawer.locator(".drawer-icon.closedIcon")).to_have_count(1)

    def set_number(self, id: str, value: int) -> None:
        """Type a number into a field."""
        field = self.page.locator(f"#{id}")
        field.fill(str(value))
        field.dispatch_event("input")
        field.dispatch_event("change")

    def set_hidden(self, id: str, value: str) -> None:
        """Set a field that lies in a folded part of its drawer."""
        self.page.locator(f"#{id}").evaluate(
            """(field, value) => {
                field.value = value;
                field.dispatchEvent(new Event('input', {bubbles: true}));
            }""",
            value,
        )

    def tick(self, id: str) -> None:
        """Tick a box, some of which are drawn by their label."""
        box = self.page.locator(f"#{id}")
        if not box.is_checked():
            box.evaluate("box => box.click()")

    def send(self, text: str) -> None:
        """Send a message and wait for the answer to begin."""
        before = self.page.locator("#chat .mes").count()
        self.ask(text)
        expect(self.page.locator("#chat .mes")).not_to_have_count(before)
        expect(self.page.locator("#chat .mes").last).to_have_attribute("is_user", "false")

    def ask(self, text: str) -> None:
        """Send a message, whatever comes of it.

        The button does nothing while the end of the answer before is still being worked on.
        """
        box, button = self.page.locator("#send_textarea"), self.page.locator("#send_but")
        box.fill(text)
        for attempt in range(24):
            if attempt % 4 == 0 and button.is_visible():
                button.click()
            self.page.wait_for_timeout(500)
            if not box.input_value():
                return
        raise AssertionError(f"not sent: {text!r}")

    def attach(self, file: Path) -> None:
        """Attach a file to the next message."""
        self._give("attachFile", file)
        expect(self.page.locator("#file_form")).to_be_visible()

    def set_up_captions(self) -> None:
        """Have pictures captioned by the model of the chat (Extensions, Image Captioning)."""
        fields = {"source": "multimodal", "multimodal_api": "custom"}
        for name, value in {**fields, "multimodal_model": "custom_current"}.items():
            self.page.locator(f"#caption_{name}").evaluate(
                """(field, value) => {
                    field.value = value;
                    field.dispatchEvent(new Event('change', {bubbles: true}));
                }""",
                value,
            )

    def caption(self, file: Path) -> str:
        """The message that "Generate Caption" makes of a picture."""
        before = self.page.locator("#chat .mes").count()
        self._give("send_picture", file)
        expect(self.page.locator("#chat .mes")).to_have_count(before + 1)
        return self.answer.inner_text()

    def error_with(self, words: str) -> str:
        """The error with these words that the page shows, or will in a moment; dismisses it."""
        error = self.page.locator("#toast-container .toast-error", has_text=words).first
        expect(error).to_be_visible()
        text = " ".join(error.inner_text().split())
        self.close_toasts()
        return text

    def new_chat(self) -> None:
        """Begin a new chat."""
        self.option("start_new_chat")
        self.page.locator("dialog[open] .popup-button-ok").click()
        expect(self.page.locator("#chat .mes")).to_have_count(0)

    def option(self, name: str) -> None:
        """Choose from the menu beside the text box."""
        self.page.locator("#options_button").click()
        self.page.locator(f"#option_{name}").click()

    def stop(self) -> None:
        """Press the button that stops the answer."""
        self.stop_button.click()
        expect(self.stop_button).to_be_hidden()

    def finished(self) -> str:
        """The text of the last message when the answer is complete."""
        expect(self.stop_button).to_be_hidden(timeout=60_000)
        return wait_until_still(self.answer)

    def swipe(self) -> None:
        """Ask for another answer in the place of the last."""
        self.page.locator("#chat .mes").last.locator(".swipe_right").click()

    def count_tokens(self, text: str) -> tuple[int, str]:
        """What the token counter says of a text: how many, and their ids."""
        page = self.page
        page.locator("#extensionsMenuButton").click()
        page.locator("#token_counter").click()
        page.locator("#token_counter_textarea").fill(text)
        result = page.locator("#token_counter_result")
        expect(result).not_to_have_text("0")
        counted = int(result.inner_text()), page.locator("#token_counter_ids").input_value()
        page.locator("dialog[open] .popup-button-ok").click()
        return counted

    def close_toasts(self) -> None:
        """Dismiss what the page shows for a while."""
        with suppress(Error):
            for toast in self.page.locator("#toast-container .toast").all():
                toast.click(timeout=500)

    def _give(self, button: str, file: Path) -> None:
        """Choose a file by a button of the menu with the wand."""
        self.page.locator("#extensionsMenuButton").click()
        with self.page.expect_file_chooser() as chooser:
            self.page.locator(f"#{button}").click()
        chooser.value.set_files(file)
