"""The schema of `config.yml`. Descriptions become the comments of the shipped `config.yml`."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    model_validator,
)

from enginebay.config.listening import ListeningConfig
from enginebay.config.loading import LoadingConfig
from enginebay.config.media import MediaConfig
from enginebay.config.names import name_problems, without_likes
from enginebay.config.origins import Origins
from enginebay.config.problems import key_text
from enginebay.config.sampling import Sampling, SamplingDefaults
from enginebay.config.section import Section, Text
from enginebay.config.sites import Host, Origin
from enginebay.config.usage import UsageConfig
from enginebay.contract.backend_settings import Isolation

S = TypeVar("S", bound=Section)
LogLevel = Literal["debug", "info", "warning", "error"]


def sendable(key: SecretStr) -> SecretStr:
    """Validate that a key can be sent in a header."""
    text = key.get_secret_value()
    if not text or not all("!" <= character <= "~" for character in text):
        raise ValueError("an API key must be ASCII characters without spaces, at least one")
    return key


class HttpConfig(Section):
    """The keys of `server` about HTTP, access and what is logged."""

    host: Text = Field(
        "127.0.0.1",
        description="Address to listen on; 0.0.0.0 accepts connections from other machines.",
    )
    port: int = Field(5000, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    api_keys: list[Annotated[SecretStr, AfterValidator(sendable)]] = Field(
        default=[],
        description="API keys that clients may use, in addition to those in the keys file.",
    )
    keys_file: Text = Field(
        "keys.yml",
        description="File of named keys and their limits; created on the first start.",
    )
    auth: Literal["auto", "required", "admin", "none"] = Field(
        "auto",
        description="Who needs a key: auto, required (all), admin (for admin routes) or none.",
    )
    apis: list[Text] | None = Field(
        None,
        description="APIs to serve beside chats and completions; all of them if unset.",
    )
    share_prefixes: bool = Field(
        False,
        description="Share cached prompts between API keys; keys can then guess others' prompts.",
    )
    allowed_hosts: list[Host] = Field(
        default=[],
        description="More host names that may be used without a key; *.example matches subdomains.",
    )
    cors_origins: list[Origin] = Field(
        default=[],
        description="Web pages that may call the API, such as https://chat.example; * allows any.",
    )
    log_level: LogLevel = Field(
        "info",
        description="Log level: debug, info (which includes a line per request), warning or error.",
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Log format: text, or json with one object per line."
    )
    metrics: Literal["on", "keyed", "off"] = Field(
        "on",
        description="/metrics: on (needs a key where other routes need one), keyed or off.",
    )
    capture: Text | None = Field(
        None,
        description="Write each request and its answer to a file in this folder; off if unset.",
    )
    capture_files: int = Field(
        1000, ge=1, description="Maximum number of these files; the oldest are deleted."
    )
    stall_timeout: float = Field(
        60, gt=0, description="Seconds without progress after which a model is reported as stuck."
    )
    max_request_bytes: int = Field(
        32_000_000, gt=0, description="Maximum size of a request body, in bytes."
    )
    max_request_values: int = Field(
        500_000,
        gt=0,
        description="Maximum number of commas, colons and opening brackets in a request body.",
    )
    max_request_items: int = Field(
        10_000,
        gt=0,
        description="Maximum number of objects in a request body, and of fields in one object.",
    )
    request_timeout: float = Field(
        60,
        gt=0,
        description="Seconds within which a request's headers, and then its body, must arrive.",
    )
    ping_interval: float = Field(
        15,
        gt=0,
        description="Seconds without a token after which a stream of events gets a ping.",
    )
    request_id_from: Literal["header", "request_id", "user"] = Field(
        "header",
        description="Where request ids come from first: the X-Request-Id header, or a body field.",
    )
    usage_with_finish: bool = Field(
        False,
        description="Send usage in the same event as the last finish_reason, as TabbyAPI does.",
    )
    timings: bool = Field(
        False, description="Send llama-server's timings with every answer, as it does."
    )
    tokens_as_ids: bool = Field(
        False, description="Show tokens in logprobs as token_id:N, unless a request says otherwise."
    )
    log_prompts: bool = Field(
        False, description="Log the text of prompts and answers, not only their length."
    )
    strict_params: bool = Field(
        False,
        description="Reject unsupported parameters with 400; if false, a header names them.",
    )
    shutdown_timeout: float = Field(
        5, ge=0, description="Seconds that running requests get to finish when the server stops."
    )
    allow_request_template: bool = Field(
        False,
        description="Accept chat templates in requests, which is Jinja code that the server runs.",
    )
    model_dir: Text = Field(
        "models",
        description="Folder of models to load by name; relative to this config file.",
    )
    lora_dir: Text = Field(
        "loras",
        description="Folder of LoRAs to load by name; relative to this config file.",
    )
    max_download_bytes: int | None = Field(
        None, gt=0, description="Maximum size of a download, in bytes; unlimited if unset."
    )
    use_dummy_models: bool = Field(
        False, description="Also list the names below as models, served by the default model."
    )
    dummy_model_names: list[Text] = Field(
        default=["gpt-3.5-turbo"],
        description="Model names that clients insist on, for use_dummy_models.",
    )


class ServerConfig(ListeningConfig, UsageConfig, MediaConfig, HttpConfig):
    """Where the server listens and who may use it."""


def _needs_backend_or_like(schema: dict[str, Any]) -> None:
    """Inherited keys need not be written; pydantic only sees the merged model."""
    schema["required"] = ["name"]
    schema["anyOf"] = [{"required": ["backend"]}, {"required": ["like"]}]


class ModelConfig(Section):
    """One model to serve."""

    model_config = ConfigDict(json_schema_extra=_needs_backend_or_like)

    name: Text = Field(description="The name that clients send as `model`.")
    aliases: list[Text] = Field(default=[], description="Other names for the same model.")
    like: Text | None = Field(None, description="Inherit unset keys from the model of this name.")
    backend: Text = Field(
        description="The engine that runs the model; `enginebay plugins` lists what is installed."
    )
    path: Text = Field(
        "",
        description="The model's file or folder, relative to this file, or hf://OWNER/REPO:QUANT.",
    )
    load: Literal["start", "request", "command"] = Field(
        "start",
        description="When to load the model: at start, on the first request, or on command.",
    )
    idle_timeout: float = Field(
        0,
        ge=0,
        description="Unload the model after this many seconds without a request; 0 is never.",
    )
    pinned: bool = Field(
        False, description="Never unload the model to free memory, when idle, or on a model switch."
    )
    isolation: Isolation | None = Field(
        None,
        description="Run the engine in a thread or a process; if unset, the backend decides.",
    )
    chat_template: Text | None = Field(
        None,
        description="A .jinja file, or a name in templates/ or the model; default: its own.",
    )
    chat_template_content_format: Literal["auto", "string", "openai"] = Field(
        "auto",
        description="Message content in templates: string, openai (list of parts) or auto.",
    )
    overflow: Literal["error", "drop_oldest"] = Field(
        "error",
        description="A chat that is too long: an error, or its oldest turns are left out.",
    )
    continue_assistant: bool = Field(
        False,
        description="Continue a last message of the assistant instead of starting a new one.",
    )
    response_role: Text = Field(
        "assistant", description="Role of answers that begin a new message."
    )
    reasoning: Text = Field(
        "auto",
        description="Reasoning format: auto (detected from the chat template), none or a name.",
    )
    reasoning_start: Literal["auto", "always", "never"] = Field(
        "auto",
        description="Whether answers begin inside reasoning; auto: as the prompt's end shows.",
    )
    reasoning_field: Literal["reasoning_content", "reasoning", "both", "content"] = Field(
        "reasoning_content",
        description="Field for reasoning in answers; content: in the content, with its tags.",
    )
    reasoning_budget: int | None = Field(
        None,
        ge=0,
        description="Maximum reasoning tokens per answer; unlimited if unset.",
    )
    reasoning_budget_message: str = Field(
        "", description="Text inserted when the reasoning budget runs out."
    )
    template_vars: dict[str, Any] = Field(
        default={}, description="Variables of the chat template, which requests may override."
    )
    force_template_vars: dict[str, Any] = Field(
        default={}, description="Variables of the chat template, which requests cannot override."
    )
    tools: Text = Field(
        "auto",
        description="Tool call format: auto (detected from the chat template), none or a name.",
    )
    parse_calls: Literal["offered", "always"] = Field(
        "offered",
        description="Which answers are read for tool calls: those to requests with tools, or all.",
    )
    tools_in_reasoning: bool = Field(
        True, description="Whether tool calls inside the reasoning count as tool calls."
    )
    sampling: Sampling = Field(
        default_factory=SamplingDefaults,
        description="Defaults for requests; where unset, the model's own defaults apply.",
    )
    sampling_preset: Text | None = Field(
        None,
        description="Name of a preset file in sampler_overrides/ to apply to this model.",
    )
    max_running: int | None = Field(
        None,
        gt=0,
        description="Maximum concurrent choices; defaults to the engine's batch size.",
    )
    max_queue: int = Field(
        256,
        ge=0,
        description="Maximum requests waiting in the queue; beyond it, requests get 429.",
    )
    queue_timeout: float = Field(
        0,
        ge=0,
        description="Seconds that a request may wait in the queue; then 429. 0 is any time.",
    )
    options: dict[str, Any] = Field(
        default={}, description="Options of the backend; each backend has its own."
    )


class PluginsConfig(Section):
    """Where to look for plugins that are not installed packages."""

    folder: Text = Field(
        "plugins",
        description="Folder of single-file plugins; relative to this config file.",
    )
    blocked: list[Text] = Field(
        default=[], description="Names of plugins not to load; `enginebay plugins` lists them."
    )


class Config(Section):
    """The whole file."""

    model_config = ConfigDict(title="Enginebay config.yml")

    server: ServerConfig = Field(
        default_factory=ServerConfig, description="Where the server listens and who may use it."
    )
    models: list[ModelConfig] = Field(
        default=[],
        description="The models to serve; a request without a name uses the last or first one.",
    )
    loading: LoadingConfig = Field(
        default_factory=LoadingConfig,
        description="How many models are in memory at once, and how requests wait for them.",
    )
    plugins: PluginsConfig = Field(
        default_factory=PluginsConfig,
        description="Backends, formats and hooks that are not installed packages.",
    )

    _origins: Origins = PrivateAttr(default_factory=Origins)

    def section(self, kind: type[S]) -> S | None:
        """Return the section of a wing, which is an instance of `kind`; None if it is not there."""
        return next((each for _, each in self if isinstance(each, kind)), None)

    @property
    def origins(self) -> Origins:
        """Where each value was set."""
        return self._origins

    def use_origins(self, origins: Origins) -> None:
        """Its values are from there now."""
        self._origins = origins

    @property
    def base(self) -> Path:
        """The folder that relative paths are relative to: the config file's, absolute."""
        return self._origins.file.absolute().parent if self._origins.file else Path.cwd()

    @model_validator(mode="before")
    @classmethod
    def _join_likes(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("models"), list):
            return data
        return {**data, "models": without_likes(data["models"])}

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for path, message in name_problems(self.model_dump(include={"models", "server"})):
            raise ValueError(f"{key_text(path)}: {message}")
        return self


def resolved_path(path: str, base: Path) -> str:
    """`path` made absolute, relative to the config's folder; URLs and no path are unchanged."""
    return path if not path or "://" in path else str(base / Path(path).expanduser())
