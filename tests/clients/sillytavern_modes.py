"""The ways in which SillyTavern talks to this server, as far as they differ."""

from abc import ABC, abstractmethod
from typing import ClassVar

from playwright.sync_api import expect

from tests.clients.sillytavern import SillyTavern


class Mode(ABC):
    """How to connect, choose a model and set what both modes have in different places."""

    name: ClassVar[str]
    refused: ClassVar[str]
    """What the page says when it could not connect."""
    choices_field: ClassVar[str]
    answer_tokens: ClassVar[int] = 2000
    """Enough for a story to be stopped in its middle."""

    def __init__(self, tavern: SillyTavern, url: str) -> None:
        self.tavern = tavern
        self.url = url

    @abstractmethod
    def connect(self, key: str) -> None:
        """Enter the address and a key, connect."""

    def connect_to(self, url: str, key: str) -> None:
        """Connect to another server, or with another key, and choose `storyteller`."""
        self.url = url
        self.connect(key)
        self.models()
        self.choose("storyteller")

    @abstractmethod
    def models(self) -> list[str]:
        """The names of the models on offer."""

    def _options(self, select: str) -> list[str]:
        options = self.tavern.page.locator(f"#{select} option")
        expect(options.filter(has_text="storyteller")).to_have_count(1)
        return [value for value in options.evaluate_all("all => all.map(o => o.value)") if value]

    @abstractmethod
    def choose(self, model: str) -> None:
        """Choose a model."""

    @abstractmethod
    def prepare(self) -> None:
        """Set what is not as it should be after the first start."""


class ChatCompletion(Mode):
    """Chat Completion, source "Custom (OpenAI-compatible)"."""

    name = "SillyTavern, chat"
    refused = "Status check bypassed"
    choices_field = "n_openai"

    def connect(self, key: str) -> None:
        tavern, page = self.tavern, self.tavern.page
        tavern.open_drawer("sys-settings-button")
        page.locator("#main_api").select_option("openai")
        page.locator("#chat_completion_source").select_option("custom")
        page.locator("#custom_api_url_text").fill(f"{self.url}/v1")
        page.locator("#api_key_custom").fill(key)
        page.locator("#api_button_openai").click()

    def models(self) -> list[str]:
        return self._options("model_custom_select")

    def choose(self, model: str) -> None:
        self.tavern.open_drawer("sys-settings-button")
        self.tavern.page.locator("#model_custom_select").select_option(model)
        self.tavern.close_drawer("sys-settings-button")

    def prepare(self) -> None:
        self.tavern.open_drawer("ai-config-button")
        self.tavern.set_number("openai_max_tokens", self.answer_tokens)
        self.tavern.tick("stream_toggle")
        self.tavern.tick("continue_prefill")
        self.tavern.close_drawer("ai-config-button")


class Claude(ChatCompletion):
    """Chat Completion, source Claude, with a reverse proxy: this server's Messages.

    Its models are a fixed list; ours have aliases that are in it.
    """

    name = "SillyTavern, Claude"
    aliases: ClassVar = {
        "enginebay-demo": "claude-haiku-4-5",
        "storyteller": "claude-sonnet-4-5",
        "seer": "claude-opus-4-5",
    }

    def __init__(self, tavern: SillyTavern, url: str) -> None:
        super().__init__(tavern, url)
        asks = tavern.page.locator("dialog[open]", has_text="Connecting To Proxy")
        yes = asks.locator(".popup-button-ok")
        tavern.page.add_locator_handler(asks, lambda: yes.click())

    def connect(self, key: str) -> None:
        tavern, page = self.tavern, self.tavern.page
        tavern.open_drawer("sys-settings-button")
        page.locator("#main_api").select_option("openai")
        page.locator("#chat_completion_source").select_option("claude")
        tavern.set_hidden("openai_reverse_proxy", f"{self.url}/v1")
        tavern.set_hidden("openai_proxy_access_key", key)
        page.locator("#api_button_openai").click()

    def models(self) -> list[str]:
        return list(self.aliases)

    def choose(self, model: str) -> None:
        self.tavern.open_drawer("sys-settings-button")
        self.tavern.page.locator("#model_claude_select").select_option(self.aliases[model])
        self.tavern.close_drawer("sys-settings-button")


class TextCompletion(Mode):
    """Text Completion, API type TabbyAPI, with the instruct template ChatML."""

    name = "SillyTavern, TabbyAPI"
    refused = "No connection"
    choices_field = "n_textgenerationwebui"
    stream_box: ClassVar[str] = "streaming_textgenerationwebui"

    def connect(self, key: str) -> None:
        tavern, page = self.tavern, self.tavern.page
        tavern.open_drawer("sys-settings-button")
        page.locator("#main_api").select_option("textgenerationwebui")
        page.locator("#textgen_type").select_option("tabby")
        page.locator("#tabby_api_url_text").fill(self.url)
        page.locator("#api_key_tabby").fill(key)
        page.locator("#api_button_textgenerationwebui").click()

    def models(self) -> list[str]:
        return self._options("tabby_model")

    def choose(self, model: str) -> None:
        page = self.tavern.page
        self.tavern.open_drawer("sys-settings-button")
        page.locator("#tabby_model + .select2").click()
        page.locator(".select2-results__option", has_text=model).click()
        self.tavern.close_drawer("sys-settings-button")

    def prepare(self) -> None:
        tavern, page = self.tavern, self.tavern.page
        tavern.open_drawer("ai-config-button")
        tavern.set_number("amount_gen_counter", self.answer_tokens)
        tavern.set_number("max_context_counter", 4096)
        tavern.tick(self.stream_box)
        tavern.close_drawer("ai-config-button")
        tavern.open_drawer("advanced-formatting-button")
        tavern.tick("instruct_enabled")
        page.locator("#context_presets").select_option(label="ChatML")
        page.locator("#instruct_presets").select_option(label="ChatML")
        tavern.tick("reasoning_auto_parse")
        tavern.close_drawer("advanced-formatting-button")


class Ollama(TextCompletion):
    """Text Completion, API type Ollama, which sends no key."""

    name = "SillyTavern, Ollama"

    def connect(self, key: str = "") -> None:
        page = self.tavern.page
        self.tavern.open_drawer("sys-settings-button")
        page.locator("#main_api").select_option("textgenerationwebui")
        page.locator("#textgen_type").select_option("ollama")
        page.locator("#ollama_api_url_text").fill(self.url)
        page.locator("#api_button_textgenerationwebui").click()

    def models(self) -> list[str]:
        return self._options("ollama_model")

    def choose(self, model: str) -> None:
        page = self.tavern.page
        self.tavern.open_drawer("sys-settings-button")
        page.locator("#ollama_model + .select2").click()
        page.locator(".select2-results__option", has_text=model).click()
        self.tavern.close_drawer("sys-settings-button")


class KoboldCpp(TextCompletion):
    """Text Completion, API type KoboldCpp, which names no model: the default one answers."""

    name = "SillyTavern, KoboldCpp"

    def connect(self, key: str = "") -> None:
        page = self.tavern.page
        self.tavern.open_drawer("sys-settings-button")
        page.locator("#main_api").select_option("textgenerationwebui")
        page.locator("#textgen_type").select_option("koboldcpp")
        page.locator("#koboldcpp_api_url_text").fill(self.url)
        page.locator("#api_key_koboldcpp").fill(key)
        page.locator("#api_button_textgenerationwebui").click()

    def models(self) -> list[str]:
        expect(self.tavern.status).not_to_contain_text(self.refused)
        return [self.tavern.status.inner_text()]

    def choose(self, model: str) -> None:
        """There is no menu of models."""


class KoboldAI(KoboldCpp):
    """KoboldAI Classic, which sends no key either."""

    name = "SillyTavern, KoboldAI"
    stream_box = "streaming_kobold"

    def connect(self, key: str = "") -> None:
        page = self.tavern.page
        self.tavern.open_drawer("sys-settings-button")
        page.locator("#main_api").select_option("kobold")
        page.locator("#api_url_text").fill(f"{self.url}/api")
        page.locator("#api_url_text").press("Tab")  # away from the list of earlier addresses
        page.locator("#api_button").click()

    def prepare(self) -> None:
        self.tavern.open_drawer("ai-config-button")
        self.tavern.page.locator("#settings_preset").select_option(index=1)  # 0: no sampling params
        super().prepare()
