"""What `config.yml` may say. The descriptions are the comments of the shipped `config.yml`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    model_validator,
)

from core.config.origins import Origins
from core.types import Isolation

Text = Annotated[str, Field(min_length=1)]
LogLevel = Literal["debug", "info", "warning", "error"]


def _sendable(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    if not text or not all("!" <= character <= "~" for character in text):
        raise ValueError("an API key must be ASCII characters without spaces, at least one")
    return key


class _Section(BaseModel):
    """A mapping of the file. A key without a value counts as not set."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_means_unset(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {k: v for k, v in data.items() if v is not None or k not in cls.model_fields}


class ServerConfig(_Section):
    """Where the server listens and who may use it."""

    host: Text = Field(
        "127.0.0.1", description="Address to listen on; 0.0.0.0 lets other machines in."
    )
    port: int = Field(5000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    api_keys: list[Annotated[SecretStr, AfterValidator(_sendable)]] = Field(
        default=[],
        description="Keys that clients may send; with none, whoever reaches the port is let in.",
    )
    cors_origins: list[Text] = Field(
        default=[],
        description="Web pages that may call from a browser (https://chat.example; * is any).",
    )
    log_level: LogLevel = Field(
        "info", description="What to log: debug, info (with one line a request), warning or error."
    )
    max_request_bytes: int = Field(
        20_000_000, gt=0, description="Largest request body that is read, in bytes."
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
    allow_request_template: bool = Field(
        False, description="Let requests bring chat templates: Jinja that this server then runs."
    )


class SamplingDefaults(_Section):
    """Sampling params of requests that do not say; with none here either, the model's own count."""

    temperature: float | None = Field(
        None, ge=0, le=100, description="How much chance there is in the choice; 0 has none."
    )
    top_p: float | None = Field(
        None, ge=0, le=1, description="Choose among the likeliest tokens of this total probability."
    )
    top_k: int | None = Field(
        None, ge=0, description="Choose among this many of the likeliest tokens; 0 is off."
    )
    min_p: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Leave out tokens less likely than this share of the likeliest one; 0 is off.",
    )
    max_tokens: int | None = Field(
        None, ge=1, description="Longest answer in tokens; not set, what the context has room for."
    )
    presence_penalty: float | None = Field(
        None, ge=-2, le=2, description="Lower the chance of tokens that the answer already has."
    )
    frequency_penalty: float | None = Field(
        None, ge=-2, le=2, description="The same, once for each time the answer has the token."
    )
    repetition_penalty: float | None = Field(
        None,
        gt=0,
        le=10,
        description="Divide the chance of tokens that prompt or answer already has; 1 is off.",
    )
    stop: list[Text] | None = Field(
        None, max_length=64, description="Texts that end the answer; they are not part of it."
    )
    seed: int | None = Field(
        None,
        ge=0,
        lt=2**64,
        description="Makes answers repeatable: the same seed gives the same answer.",
    )
    temperature_last: bool | None = Field(
        None, description="Apply the temperature after all other samplers."
    )
    typical_p: float | None = Field(
        None, ge=0, le=1, description="Choose among the most typical tokens; 1 is off."
    )
    top_n_sigma: float | None = Field(
        None,
        ge=0,
        le=100,
        description="Choose among logits so many deviations from the highest; 0 is off.",
    )
    xtc_probability: float | None = Field(
        None, ge=0, le=1, description="How often to leave out the likeliest tokens; 0 is off."
    )
    xtc_threshold: float | None = Field(
        None,
        ge=0,
        le=1,
        description="XTC leaves out tokens at least this likely, but the last.",
    )
    dry_multiplier: float | None = Field(
        None,
        ge=0,
        le=100,
        description="Strength of DRY, which penalizes repeated sequences; 0 is off.",
    )
    dry_base: float | None = Field(
        None, ge=1, le=100, description="How fast DRY's penalty grows with the repeated sequence."
    )
    dry_allowed_length: int | None = Field(
        None, ge=0, description="Longest repeated sequence that DRY lets pass, in tokens."
    )
    dry_penalty_last_n: int | None = Field(
        None, ge=-1, description="Tokens that DRY looks back at; -1 is all of them."
    )
    mirostat: int | None = Field(
        None, ge=0, le=2, description="Version of mirostat, which steers surprise; 0 is off."
    )
    mirostat_tau: float | None = Field(
        None, ge=0, le=100, description="Surprise that mirostat aims at, in bits a token."
    )
    mirostat_eta: float | None = Field(
        None, ge=0, le=1, description="How fast mirostat corrects itself."
    )
    dynatemp_range: float | None = Field(
        None, ge=0, le=100, description="How far the temperature follows the entropy; 0 is off."
    )
    dynatemp_exponent: float | None = Field(
        None, ge=0, le=100, description="Power of the entropy that the temperature follows."
    )
    penalty_last_n: int | None = Field(
        None, ge=-1, description="Tokens that the penalties look back at; -1 is all of them."
    )

    def params(self) -> dict[str, Any]:
        """The fields of `SamplingParams` that are set here."""
        params = self.model_dump(exclude_none=True)
        return params | {"stop": tuple(self.stop)} if self.stop is not None else params


class ModelConfig(_Section):
    """One model to serve."""

    name: Text = Field(description="What clients send as `model`.")
    backend: Text = Field(
        description="The engine that runs it; `enginebay plugins` lists what is installed."
    )
    path: Text = Field(
        description="The model's file or folder; relative paths start at this config file."
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
    options: dict[str, Any] = Field(
        default={}, description="Settings of the backend; each backend has its own."
    )


class PluginsConfig(_Section):
    """Where plugins are found beside the installed ones."""

    folder: Text = Field(
        "plugins",
        description="Folder of single-file plugins; relative paths start at this config file.",
    )
    blocked: list[Text] = Field(
        default=[], description="Names of plugins to leave out; `enginebay plugins` lists them."
    )


class Config(_Section):
    """The whole file."""

    model_config = ConfigDict(title="Enginebay config.yml")

    server: ServerConfig = Field(
        default_factory=ServerConfig, description="Where the server listens and who may use it."
    )
    models: list[ModelConfig] = Field(
        default=[], description="The models to serve; the first one answers requests without one."
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

    @model_validator(mode="after")
    def _unique_names(self) -> Self:
        names = [model.name for model in self.models]
        if repeated := repeated_at(names):
            raise ValueError(f"two models are named {names[repeated[0]]!r}")
        return self


def repeated_at(names: Sequence[object]) -> list[int]:
    """The indices of names that stand earlier in the list already."""
    return [index for index, name in enumerate(names) if name in names[:index]]


def resolved_path(path: str, base: Path) -> str:
    """`path` made absolute, relative to the config's folder; a URL stays as it is."""
    return path if "://" in path else str(base / Path(path).expanduser())
