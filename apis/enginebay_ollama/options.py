"""`options` of Ollama's requests, and what else they say of how text is generated."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from enginebay.apis.extras import passed_on
from enginebay.config.field_types import field_names
from enginebay.config.neutral_values import asks_for_nothing
from enginebay.config.sampling_fields import SamplingFields
from enginebay_ollama.request_bodies import OllamaGeneration

_NOTES = frozenset(
    (
        *("num_ctx", "num_gpu", "main_gpu", "num_thread", "num_batch", "use_mmap", "use_mlock"),
        *("numa", "low_vram", "f16_kv", "vocab_only", "draft_num_predict"),
    )
)
"""How a model is to be loaded, which clients send with every request: the config decides."""

_LIMIT = "num_predict"

_SAMPLING = {
    alias: name
    for name, each in SamplingFields.model_fields.items()
    for alias in field_names(name, each)
}
"""Sampling fields by all of their names."""


@dataclass(slots=True)
class Fields:
    """Fields of a chat or completion, the client's names of them, and names of others."""

    fields: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)


def read_options(options: Mapping[str, Any] | None) -> Fields:
    """The sampling fields of `options`, under whichever of their names; a limit of none is none."""
    read = Fields()
    for option, value in (options or {}).items():
        if option == _LIMIT and isinstance(value, int) and value <= 0:
            continue
        if option in _SAMPLING:
            read.fields[option] = value
            read.places |= dict.fromkeys((option, _SAMPLING[option]), f"options.{option}")
        elif option not in _NOTES and not asks_for_nothing(option, value):
            read.ignored.append(f"options.{option}")
    return read


def generation_fields(body: OllamaGeneration) -> Fields:
    """What chats and completions have in common, of the fields and the options of a request."""
    asked = read_options(body.options)
    kept, ignored = passed_on(body.model_extra, without=("response_format",))
    asked.fields = {**kept, **asked.fields, "stream": body.stream, "keep_alive": body.keep_alive}
    asked.ignored += [*ignored, *body.ignored()]
    asked.places |= {"truncate_prompt_tokens": "truncate", "response_format": "format"}
    if body.truncate:
        asked.fields["truncate_prompt_tokens"] = -1
    if isinstance(body.format, dict):
        schema = {"schema": body.format}
        asked.fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        asked.places |= dict.fromkeys(
            ("response_format.json_schema", "response_format.json_schema.schema"), "format"
        )
    elif body.format:
        asked.fields["response_format"] = {"type": "json_object"}
    return asked
