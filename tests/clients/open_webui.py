"""Open WebUI, driven through its page."""

from pathlib import Path
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

    def connect(self, url: str, key: str, *, api_type: str = "Chat Completions") -> str:
        """Enter the address and a key in the settings, verify, save; what it says to them."""
        self._open_connection()
        toggle = self.page.locator("#api-type-toggle")
        if toggle.inner_text() != api_type:
            toggle.click()
        expect(toggle).to_have_text(api_type)
        return self._save_connection(f"{url}/v1", key, "OpenAI API settings updated")

    def connect_ollama(self, url: str, key: str) -> str:
        """The same for the connection to an Ollama, of which there is one."""
        self._open_connection()
        return self._save_connection(url, key, "Ollama API settings updated")

    def _open_connection(self) -> None:
        self.page.goto(f"{self._url}admin/settings/connections")
        self.page.get_by_role("button", name="Configure").first.click()

    def _save_connection(self, url: str, key: str, saved: str) -> str:
        page = self.page
        page.get_by_placeholder("API Base URL").last.fill(url)
        page.get_by_placeholder("API Key").last.fill(key)
        page.get_by_role("button", name="Verify Connection").click()
        said = page.locator("[data-sonner-toast]").first.inner_text()
        page.get_by_role("button", name="Save").last.click()
        expect(page.get_by_text(saved)).to_be_visible()
        return said

    def connect_to(self, url: str, key: str) -> None:
        """Connect to another server, or with another key, and choose `storyteller`."""
        self.connect(url, key)
        self.new_chat()
        self.choose("storyteller")

    def new_chat(self) -> None:
        """Begin a new chat."""
        self.page.goto(self._url)
        expect(self.page.locator("#model-selector-model-button")).to_be_visible()

    def send(self, text: str) -> None:
        """Send a message and wait for the answer to begin."""
        self.ask(text)
        expect(self.message).to_be_visible()

    def ask(self, text: str) -> None:
        """Send a message, whatever comes of it."""
        asked = self.page.locator(".user-message").count()
        self.page.locator("#chat-input").click()
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")
        expect(self.page.locator(".user-message")).to_have_count(asked + 1)

    def attach(self, file: Path) -> None:
        """Attach a file to the next message."""
        self.page.locator("#input-menu-button").click()
        with self.page.expect_file_chooser() as chooser:
            self.page.get_by_text("Upload Files", exact=True).click()
        chooser.value.set_files(file)
        expect(self.page.locator("#message-input-container img").first).to_be_visible()

    def error_with(self, words: str) -> str:
        """The error with these words that stands in the place of the answer."""
        error = self.message.get_by_text(words)
        expect(error).to_be_visible()
        return " ".join(error.inner_text().split())

    def stop(self) -> None:
        """Press the button that stops the answer."""
        self.stop_button.click()
        expect(self.stop_button).to_be_hidden()

    def finished(self) -> str:
        """The text of the last answer when it is complete."""
        expect(self.message.get_by_role("button", name="Regenerate")).to_be_visible(timeout=60_000)
        return wait_until_still(self.answer)

    def regenerate(self) -> None:
        """Have the last answer given anew."""
        self.press("Regenerate")
        self.page.get_by_text("Try Again", exact=True).click()

    def press(self, name: str) -> None:
        """Press a button of the last answer."""
        self.message.hover()
        self.message.get_by_role("button", name=name, exact=True).click()

    def set_default_metadata(self, metadata: dict[str, Any]) -> None:
        """What Admin Settings > Models > Settings sets for all models; reloads the page."""
        self._configure("/api/v1/configs/models", {"DEFAULT_MODEL_METADATA": metadata})
        self.page.reload()
        expect(self.page.locator("#model-selector-model-button")).to_be_visible()

    def ask_for_chats_only(self) -> None:
        """Turn off in Admin Settings > Interface what is asked for beside the chat."""
        extras = ("TITLE", "TAGS", "FOLLOW_UP", "AUTOCOMPLETE")
        settings = {f"ENABLE_{extra}_GENERATION": False for extra in extras}
        self._configure("/api/v1/tasks/config", settings, "/update")

    def _configure(self, path: str, settings: dict[str, Any], update: str = "") -> None:
        self.page.evaluate(
            """async ([path, update, settings]) => {
                const headers = {
                    'Authorization': `Bearer ${localStorage.token}`,
                    'Content-Type': 'application/json',
                };
                const config = await (await fetch(path, {headers})).json();
                const body = JSON.stringify({...config, ...settings});
                const answer = await fetch(path + update, {method: 'POST', headers, body});
                if (!answer.ok) throw new Error(await answer.text());
            }""",
            [path, update, settings],
        )

    def _open_models(self) -> None:
        self.page.locator("#model-selector-model-button").click()
