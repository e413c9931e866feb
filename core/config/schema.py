"""What `config.yml` may say. The descriptions are the comments of the shipped `config.yml`."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    model_validator,
)

from core.config.loading import LoadingConfig
from core.config.names import name_problems, without_likes
from core.config.origins import Origins
from core.config.problems import key_text
from core.config.sampling import SamplingDefaults
from core.config.section import Section, Text
from core.config.sites import Host, Origin
from core.contract.types import Isolation

LogLevel = Literal["debug", "info", "warning", "error"]


def sendable(key: SecretStr) -> SecretStr:
    """A key that fits into a header."""
    text = key.get_secret_value()
    if not text or not all("!" <= character <= "~" for character in text):
        raise ValueError("an API key must be ASCII characters without spaces, at least one")
    return key


class ServerConfig(Section):
    """Where the server listens and who may use it."""

    host: Text = Field(
        "127.0.0.1", description="Address to listen on; 0.0.0.0 lets other machines in."
    )
    port: int = Field(5000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    api_keys: list[Annotated[SecretStr, AfterValidator(sendable)]] = Field(
        default=[],
        description="Keys that clients may send, beside those of the keys file.",
    )
    keys_file: Text = Field(
        "keys.yml",
        description="Named keys and their limits; the first start makes this file.",
    )
    auth: Literal["auto", "required", "admin", "none"] = Field(
        "auto",
        description="Who needs a key: auto, required (all), admin (for admin routes) or none.",
    )
    allowed_hosts: list[Host] = Field(
        default=[],
        description="More names that the server is reached by without a key (*.example too).",
    )
    cors_origins: list[Origin] = Field(
        default=[],
        description="Web pages that may call from a browser (https://chat.example; * is any).",
    )
    log_level: LogLevel = Field(
        "info", description="What to log: debug, info (with one line a request), warning or error."
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="How to log: text for people, or json, one object a line."
    )
    metrics: Literal["on", "keyed", "off"] = Field(
        "on",
        description="/metrics: on (keyed where others reach the port), keyed or off.",
    )
    capture: Text | None = Field(
        None, description="Folder for a file a request, prompts and all; not set, none is written."
    )
    capture_files: int = Field(
        1000, ge=1, description="How many such files there may be; the oldest are deleted."
    )
    stall_timeout: float = Field(
        60, gt=0, description="Seconds without a sign of life after which a model counts as stuck."
    )
    max_request_bytes: int = Field(
        20_000_000, gt=0, description="Largest request body that is read, in bytes."
    )
    request_timeout: float = Field(
        60, gt=0, description="Seconds in which a request's headers, then its body, must arrive."
    )
    ping_interval: float = Field(
        15,
        gt=0,
        description="Seconds without a token after which a stream gets a comment, to stay open.",
    )
    request_id_from: Literal["header", "request_id", "user"] = Field(
        "header",
        description="Where a request's id comes from: header (X-Request-Id) or first a field.",
    )
    usage_with_finish: bool = Field(
        False,
        description="End streams with usage and last finish in one event, as TabbyAPI does.",
    )
    tokens_as_ids: bool = Field(
        False, description="Write tokens beside logprobs as token_id:N; requests can say otherwise."
    )
    log_prompts: bool = Field(
        False, description="Log what is asked and answered, not only how long it is."
    )
    strict_params: bool = Field(
        False,
        description="Answer 400 to parameters a backend cannot honour, else a header names them.",
    )
    shutdown_timeout: float = Field(
        5, ge=0, description="Seconds that answers under way get to finish when the server stops."
    )
    allow_request_template: bool = Field(
        False, description="Let requests bring chat templates: Jinja that this server then runs."
    )
    model_dir: Text = Field(
        "models",
        description="Folder of models to load by name; relative paths start at this config file.",
    )
    lora_dir: Text = Field(
        "loras",
        description="Folder of LoRAs to load by name; relative paths start at this config file.",
    )
    max_download_bytes: int | None = Field(
        None, gt=0, description="Most bytes that one download may have; not set, any number."
    )
    use_dummy_models: bool = Field(
        False, description="List the names below as models, too; the default model answers them."
    )
    dummy_model_names: list[Text] = Field(
        default=["gpt-3.5-turbo"],
        description="Names that clients insist on, for use_dummy_models.",
    )


def _needs_backend_or_like(schema: dict[str, Any]) -> None:
    """What `like` gives need not be written, which pydantic, who sees it joined, does not know."""
    schema["required"] = ["name"]
    schema["anyOf"] = [{"required": ["backend", "path"]}, {"required": ["like"]}]


class ModelConfig(Section):
    """One model to serve."""

    model_config = ConfigDict(json_schema_extra=_needs_backend_or_like)

    name: Text = Field(description="What clients send as `model`.")
    aliases: list[Text] = Field(default=[], description="Other names for it.")
    like: Text | None = Field(
        None, description="Name of another model: what is not set here is as it is there."
    )
    backend: Text = Field(
        description="The engine that runs it; `enginebay plugins` lists what is installed."
    )
    path: Text = Field(
        description="The model's file or folder; relative paths start at this config file."
    )
    load: Literal["start", "request", "command"] = Field(
        "start", description="When to load it: at start, on the first request, or on command."
    )
    idle_timeout: float = Field(
        0, ge=0, description="Seconds without a request until it is unloaded; 0 is never."
    )
    pinned: bool = Field(
        False, description="Never unload it to make room, nor for being idle, nor in a switch."
    )
    isolation: Isolation | None = Field(
        None,
        description="Run its engine on a thread or in a process; not set, the backend's choice.",
    )
    chat_template: Text | None = Field(
        None,
        description="A .jinja file, one of templates/ or of the model's by name; else its own.",
    )
    chat_template_content_format: Literal["auto", "string", "openai"] = Field(
        "auto",
        description="Content in templates: string, openai (a list of parts), auto (what it reads).",
    )
    continue_assistant: bool = Field(
        False,
        description="Go on with a chat's last message if it is the model's; else a new one begins.",
    )
    reasoning: Text = Field(
        "auto",
        description="Format of its reasoning: auto (seen in the chat template), none or a name.",
    )
    reasoning_field: Literal["reasoning_content", "reasoning", "both", "content"] = Field(
        "reasoning_content",
        description="What reasoning is called in answers; content: between tags in the content.",
    )
    reasoning_budget: int | None = Field(
        None,
        ge=0,
        description="Tokens an answer may think before it is made to end that; not set, any.",
    )
    reasoning_budget_message: str = Field(
        "", description="What the model is made to say last when its reasoning is ended so."
    )
    template_vars: dict[str, Any] = Field(
        default={}, description="Variables of the chat template, unless a request sets them."
    )
    force_template_vars: dict[str, Any] = Field(
        default={}, description="Variables of the chat template, whatever requests say."
    )
    tools: Text = Field(
        "auto",
        description="Format of its tool calls: auto (seen in the chat template), none or a name.",
    )
    tools_in_reasoning: bool = Field(
        True, description="Whether a tool call inside the reasoning counts."
    )
    sampling: SamplingDefaults = Field(
        default_factory=SamplingDefaults,
        description="Used when a request does not say; not set, the model's own defaults count.",
    )
    sampling_preset: Text | None = Field(
        None,
        description="A file of sampler_overrides/ by name: params for this model, some forced.",
    )
    max_running: int | None = Field(
        None,
        gt=0,
        description="Choices let into the engine at once; not set, what it computes together.",
    )
    max_queue: int = Field(
        256,
        ge=0,
        description="Requests that may wait for their turn; when one more comes, one gets 429.",
    )
    options: dict[str, Any] = Field(
        default={}, description="Settings of the backend; each backend has its own."
    )


class PluginsConfig(Section):
    """Where plugins are found beside the installed ones."""

    folder: Text = Field(
        "plugins",
        description="Folder of single-file plugins; relative paths start at this config file.",
    )
    blocked: list[Text] = Field(
        default=[], description="Names of plugins to leave out; `enginebay plugins` lists them."
    )


class Config(Section):
    """The whole file."""

    model_config = ConfigDict(title="Enginebay config.yml")

    server: ServerConfig = Field(
        default_factory=ServerConfig, description="Where the server listens and who may use it."
    )
    models: list[ModelConfig] = Field(
        default=[], description="The models to serve; the first one answers requests without one."
    )
    loading: LoadingConfig = Field(
        default_factory=LoadingConfig,
        description="How many models are in memory at once, and what waits for them.",
    )
    plugins: PluginsConfig = Field(
        default_factory=PluginsConfig,
        description="Backends, formats and hooks beside the installed ones.",
    )

    _origins: Origins = PrivateAttr(default_factory=Origins)

    @property
    def origins(self) -> Origins:
        """Where each value was set."""
        return self._origins

    @property
    def base(self) -> Path:
        """The absolute folder at which relative paths start: the config file's."""
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
    """`path` made absolute, relative to the config's folder; a URL stays as it is."""
    return path if "://" in path else str(base / Path(path).expanduser())
