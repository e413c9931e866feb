"""KoboldCpp's requests for a text, as requests of OpenAI's completions."""

from collections.abc import Iterator, Mapping
from typing import Any

from enginebay.apis.extras import passed_on
from enginebay.chat.schemas.completion_bodies import CompletionRequest
from enginebay.chat.schemas.read_body import read_body
from enginebay.config.field_types import field_names
from enginebay.serving.asked import Asked, Names
from enginebay_kobold.bodies import GenerateRequest

_TRANSLATED = (
    *("max_tokens", "truncation_length", "truncate_prompt_tokens", "stop", "ignore_eos"),
    *("include_stop_str_in_output", "penalty_last_n", "best_of"),
)
"""Fields of completions that are made of others here, or would make more than one text."""

_NOTES = frozenset(
    (
        *("use_story", "use_memory", "use_authors_note", "use_world_info", "quiet", "gui_settings"),
        *("frmtadsnsp", "frmtrmblln", "frmtrmspch", "frmttriminc"),
        *("api_server", "can_abort", "streaming"),
    )
)
"""What clients say of themselves, and of what KoboldAI's own page does."""

_NEUTRAL = {"n": 1, "logprobs": False}
"""What some clients say of fields that have no place in these answers: one text, nothing more."""

_NAMES = {
    "max_tokens": "max_length",
    "truncation_length": "max_context_length",
    "truncate_prompt_tokens": "max_context_length",
    "stop": "stop_sequence",
    "include_stop_str_in_output": "trim_stop",
    "penalty_last_n": "rep_pen_range",
}


def completion_of(body: GenerateRequest, *, stream: bool) -> Asked[CompletionRequest]:
    """What a body asks for; `InvalidRequestError` if a field has a value that it cannot have."""
    extra = body.model_extra or {}
    sent = {
        name: value
        for name, value in extra.items()
        if name not in _NOTES and (name not in _NEUTRAL or value != _NEUTRAL[name])
    }
    passed, ignored = passed_on(sent, without=_TRANSLATED)
    names = Names(
        {**_NAMES, **dict(_sent_names({**passed, **body.model_dump(exclude_unset=True)}))}
    )
    with names.in_errors():
        completion = read_body(CompletionRequest, {**passed, **_translated(body), "stream": stream})
    return Asked(body=completion, names=names, ignored=tuple(ignored))


def _translated(body: GenerateRequest) -> dict[str, Any]:
    stop = [*(body.stop_sequence or ()), *(["\n"] if body.singleline else ())]
    on = (body.use_default_badwordsids, body.ban_eos_token, body.bypass_eos)
    fields = {
        "model": body.model,
        "prompt": body.prompt,
        "memory": body.memory,
        "max_tokens": body.max_length,
        "truncate_prompt_tokens": -1,
        "truncation_length": body.max_context_length,
        "penalty_last_n": -1 if body.rep_pen_range == 0 else body.rep_pen_range,
        "ignore_eos": any(on) if on != (None, None, None) else None,
        "banned_strings": [*(body.banned_tokens or ()), *(body.banned_strings or ())] or None,
    }
    if stop:
        fields |= {"stop": stop, "include_stop_str_in_output": not body.trim_stop}
    return {name: value for name, value in fields.items() if value is not None}


def _sent_names(sent: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The names that were used of fields that have several."""
    for name, field in CompletionRequest.model_fields.items():
        for known in field_names(name, field):
            if known in sent and known != name:
                yield name, known
                break
    for name in ("use_default_badwordsids", "ban_eos_token", "bypass_eos"):
        if sent.get(name):
            yield "ignore_eos", name
    if sent.get("banned_tokens"):
        yield "banned_strings", "banned_tokens"
