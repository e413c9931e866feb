"""Applies the config's prompt and answer settings to a loaded model."""

from pathlib import Path

from enginebay.config.schema import ModelConfig
from enginebay.contract.errors import BackendUnavailableError, InvalidRequestError
from enginebay.contract.types import ModelInfo
from enginebay.models.check_config import settings_of_prompts
from enginebay.models.served import ServedModel
from enginebay.models.template.chat_formats import FormatChoice
from enginebay.plugins import Plugins


def format_choice(config: ModelConfig, plugins: Plugins, base: Path) -> FormatChoice:
    """The available formats for a model's chats, and the config's choice."""
    return FormatChoice(
        reasoning=config.reasoning,
        tools=config.tools,
        reasoning_formats=plugins.reasoning,
        tool_formats=plugins.tools,
        variables={*config.template_vars, *config.force_template_vars},
        base=base,
    )


def require_no_prompts(config: ModelConfig, info: ModelInfo) -> None:
    """Raise `BackendUnavailableError` for prompt settings of a model that takes messages."""
    renders = "chat_template_kwargs" not in info.unsupported
    if info.chats and (settings := settings_of_prompts(config, renders=renders)):
        raise BackendUnavailableError(
            f"the backend {config.backend!r} forwards messages; the prompt is rendered "
            "and the answer parsed elsewhere, so these have no effect: "
            f"{', '.join(settings)}; "
            "delete them from the config, or switch the backend to prompts if it has an "
            "option for that"
        )


def require_vocabulary(config: ModelConfig, info: ModelInfo) -> None:
    """Raise `BackendUnavailableError` for token ids of the config that the model does not have."""
    try:
        if not info.chats:
            config.sampling.check_token_ids(info.vocab_size)
    except InvalidRequestError as error:
        raise BackendUnavailableError(
            f"`sampling` in the config cannot be used: {error}"
        ) from error


def loaded_facts(model: ServedModel) -> list[str]:
    """The facts about a loaded model that an operator acts on, for the log."""
    config, info = model.config, model.info
    facts = [f"engine {config.backend}"]
    if info.context_length:
        facts.append(f"context {info.context_length} tokens")
    if info.max_batch_size and not info.limits:
        facts.append(f"concurrent completions: {info.max_batch_size}")
    if info.limits:
        facts.append(info.limits)
    if model.formats.bos:
        facts.append(f"BOS of chats: {model.formats.bos}")
    if info.generates and (limit := model.usual_limit):
        facts.append(
            f"no chat template of its own, so answers end after {limit} tokens; "
            "`sampling.max_tokens` sets another limit, -1 none"
        )
    if defaults := sampling_defaults(config, info):
        facts.append(defaults)
    return facts


def sampling_defaults(config: ModelConfig, info: ModelInfo) -> str:
    """The sampling defaults and their sources, for the log; empty without any."""
    of_model = {name: f"{value} (model)" for name, value in info.defaults.items()}
    of_config = {name: f"{value} (config)" for name, value in config.sampling.params.items()}
    chosen = (of_model | of_config).items()
    texts = (f"{name}={text}" for name, text in chosen)
    return f"sampling defaults: {', '.join(texts)}" if chosen else ""
