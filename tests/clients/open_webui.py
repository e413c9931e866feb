"""Open WebUI, driven through its page."""

from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.clients.browser import wait_until_still


class OpenWebUI:
    """A page of Open WebUI that has just been opened for the first time."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self._url = page.url
        page.get_by_text("Okay, Let's Go!").click(timeout=60_000)

    @property
    def message(self) -> Locator:
        """The last message of the model, with its buttons."""
        return self.page.locator(
            "[id^='message-']:not(.user-message):not(#message-input-container)"
        ).last

    @property
    def answer(self) -> Locator:
        """Its text."""
        return self.message.locator("#response-content-container")

    @property
    def stop_button(self) -> Locator:
        """Shown while an answer comes."""
        return self.page.get_by_role("button", name="Stop", exact=True)

    def models(self) -> list[str]:
        """The names in the model menu."""
        self._open_models()
        options = self.page.locator("[role=option][data-value]")
        expect(options).not_to_have_count(0)
        names = [str(option.get_attribute("data-value")) for option in options.all()]
        self.page.keyboard.press("Escape")
        return names

    def choose(self, model: str) -> None:
        """Choose a model."""
        self._open_models()
        self.page.locator(f"[role=option][data-value='{model}']").click()
        expect(self.page.locator("#model-selector-model-button")).to_contain_text(model)

    def new_chat(self) -> None:
        """Begin a new chat."""
        self.page.goto(self._url)
        expect(self.page.locator("#model-selector-model-button")).to_be_visible()

    def send(self, text: str) -> None:
        """Send a message and wait for the answer to begin."""
        asked = self.page.locator(".user-message").count()
        self.page.locator("#chat-input").click()
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")
        expect(self.page.locator(".user-message")).to_have_count(asked + 1)
        expect(self.message).to_be_visible()

    def stop(self) -> None:
        """Press the button that stops the answer."""
        self.stop_button.click()
        expect(self.stop_button).to_be_hidden()

    def finished(self) -> str:
        """The text of the last answer when it is complete."""
        expect(self.message.get_by_role("button", name="Regenerate")).to_be_visible(timeout=60_000)
        return wait_until_still(self.answer)

    def press(self, name: str) -> None:
        """Press a button of the last answer."""
        self.message.hover()
        self.message.get_by_role("button", name=name, exact=True).click()

    def set_default_metadata(self, metadata: dict[str, Any]) -> None:
        """What Admin Settings > Models > Settings sets for all models; reloads the page."""
        self.page.evaluate(
            """async metadata => {
                const headers = {
                    'Authorization': `Bearer ${localStorage.token}`,
                    'Content-Type': 'application/json',
                };
                const url = '/api/v1/configs/models';
                const config = await (await fetch(url, {headers})).json();
                const body = JSON.stringify({...config, DEFAULT_MODEL_METADATA: metadata});
                const answer = await fetch(url, {method: 'POST', headers, body});
                if (!answer.ok) throw new Error(await answer.text());
            }""",
            metadata,
        )
        self.page.reload()
        expect(self.page.locator("#model-selector-model-button")).to_be_visible()

    def _open_models(self) -> None:
        self.page.locator("#model-selector-model-button").click()
