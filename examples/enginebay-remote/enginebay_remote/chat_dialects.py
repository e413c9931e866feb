"""What servers call things in `/v1/chat/completions`, and which of them they know."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from enginebay import Chat, GenerationRequest, InvalidRequestError, UnsupportedParameterError
from enginebay_remote.dialects import ALL, COMMON, OPENAI, TOKENS, bias_fields
from enginebay_remote.options import Server

_TOOLS = frozenset({"tools", "tool_choice", "parallel_tool_calls"})
_SAMPLERS = frozenset(
    {
        *("typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "dry_multiplier"),
        *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "mirostat", "mirostat_tau"),
        *("mirostat_eta", "dynatemp_range", "dynatemp_exponent", "penalty_last_n"),
    }
)
_TEMPLATE = frozenset({"chat_template_kwargs", "reasoning_effort", "enable_thinking"})

CONTINUOUS = "continuous_usage_stats"
"""The key of `stream_options` with which every event has usage, so that an answer which is cut off
has told how long its prompt is.
"""

Form = Literal["json_object", "json_schema", "regex", "choice", "grammar"]
Thinking = Literal["effort", "template", "enginebay", "openrouter", "deepseek"]
"""How a server is told how much to think.

`effort`: `reasoning_effort` alone. `template`: variables of its chat template, too. `enginebay`:
fields of their own. `openrouter`: its object `reasoning`. `deepseek`: its object `thinking`.
"""


@dataclass(frozen=True, slots=True)
class ChatDialect:
    """How one kind of server is asked.

    `known`: the fields of `SamplingParams` and of `Chat` that it honours, but for the `forms` of
    answers that it can be held to, and `CONTINUOUS`, if it does; `names`: what it calls fields,
    where that is something else.
    `tells_usage`: it knows `stream_options`. `several`: it takes `n`. `thought_name`: what it calls
    the reasoning of earlier answers; None: it takes none. `developers`: it knows that role.
    `bans`, `salts`, `ranks`: whether it takes `banned_tokens`, `cache_salt`, any `priority`.
    """

    known: frozenset[str]
    thinking: Thinking = "effort"
    forms: frozenset[Form] = frozenset({"json_object", "json_schema"})
    names: Mapping[str, str] = field(default_factory=dict)
    tells_usage: bool = True
    several: bool = True
    thought_name: str | None = "reasoning_content"
    developers: bool = True
    bans: bool = False
    salts: bool = False
    ranks: bool = False

    @property
    def fields(self) -> frozenset[str]:
        """All it honours, as `ModelInfo.unsupported` names it."""
        of_json = {"response_format"} if "json_object" in self.forms else set[str]()
        of_text = {"structured_outputs"} if self.forms & {"regex", "choice", "grammar"} else set()
        return self.known | of_json | of_text

    def body(self, request: GenerationRequest, known: frozenset[str]) -> dict[str, Any]:
        """The request without `model`. What nobody has set is left to the server.

        `known`: those of `fields` that the upstream engine honours, too.
        """
        chat = request.chat
        if chat is None:
            raise InvalidRequestError("this model takes the messages of chats only", param="model")
        body: dict[str, Any] = {
            "messages": [self._message(message) for message in chat.messages],
            "stream": True,
            **self.usage(known),
            **self._sampling(request, chat, known),
            **self._tools(chat),
            **self._form(chat),
            **self._thinking(chat),
        }
        if request.n > 1:
            body["n"] = request.n
        if self.salts and request.cache_salt is not None:
            body["cache_salt"] = request.cache_salt
        if self.ranks and request.priority:
            body["priority"] = request.priority
        return body

    def usage(self, known: frozenset[str]) -> dict[str, Any]:
        """What of a request asks for usage, as early as the server tells it."""
        if not self.tells_usage:
            return {}
        early = {CONTINUOUS: True} if CONTINUOUS in known else {}
        return {"stream_options": {"include_usage": True, **early}}

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        sent = dict(message)
        thought = sent.pop("reasoning_content", None)
        if thought is not None and self.thought_name:
            sent[self.thought_name] = thought
        if sent["role"] == "developer" and not self.developers:
            sent["role"] = "system"
        return sent

    def _sampling(
        self, request: GenerationRequest, chat: Chat, known: frozenset[str]
    ) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {}
        for name in sorted(known & chat.chosen_params & ALL - {"logit_bias", "logprobs"}):
            value = getattr(sampling, name)
            if value is not None:
                sent = list(value) if isinstance(value, tuple) else value
                body[self.names.get(name, name)] = sent
        if body.get("top_k") == 0:
            body["top_k"] = -1  # off in every dialect; 0 is an error in some
        if "logit_bias" in known:
            body |= bias_fields(sampling.logit_bias, bans=self.bans)
        if sampling.logprobs is not None and "logprobs" in known:
            body |= {"logprobs": True, "top_logprobs": sampling.logprobs}
        return body

    def _tools(self, chat: Chat) -> dict[str, Any]:
        if not chat.tools:
            return {}
        body: dict[str, Any] = {"tools": list(chat.tools)}
        if chat.tool_choice is not None:
            body["tool_choice"] = chat.tool_choice
        if chat.parallel_tool_calls is not None and "parallel_tool_calls" in self.known:
            body["parallel_tool_calls"] = chat.parallel_tool_calls
        return body

    def _form(self, chat: Chat) -> dict[str, Any]:
        if chat.response_format:
            self._require_form(chat.response_format["type"])
            return {"response_format": chat.response_format}
        if not chat.structured_outputs:
            return {}
        [(form, value)] = chat.structured_outputs.items()
        self._require_form(form)
        if form in self.names:
            return {self.names[form]: value}
        return {"structured_outputs": chat.structured_outputs}

    def _require_form(self, form: str) -> None:
        if form not in self.forms:
            raise UnsupportedParameterError(
                f"the remote server holds no answer to a {form}; it knows: "
                f"{', '.join(sorted(self.forms))}",
                param="constraint",
            )

    def _thinking(self, chat: Chat) -> dict[str, Any]:
        effort, wanted, budget = chat.reasoning_effort, chat.enable_thinking, chat.reasoning_budget
        body: dict[str, Any] = {}
        if effort is not None and "reasoning_effort" in self.known:
            body["reasoning_effort"] = effort
        match self.thinking:
            case "template" if chat.chat_template_kwargs:
                body["chat_template_kwargs"] = dict(chat.chat_template_kwargs)
            case "enginebay":
                if wanted is not None:
                    body["enable_thinking"] = wanted
                if budget is not None:
                    body["reasoning_budget"] = budget
                said = {"enable_thinking": wanted, "thinking": wanted, "reasoning_effort": effort}
                more = {
                    name: value
                    for name, value in chat.chat_template_kwargs.items()
                    if name not in said or said[name] != value
                }
                body |= {"chat_template_kwargs": more} if more else {}
            case "deepseek" if wanted is not None:
                body["thinking"] = {"type": "enabled" if wanted else "disabled"}
                if not wanted:
                    body.pop("reasoning_effort", None)
            case "openrouter" if budget is not None or effort is not None or wanted is not None:
                body.pop("reasoning_effort", None)
                body["reasoning"] = (
                    {"max_tokens": budget}
                    if budget is not None
                    else {"effort": effort}
                    if effort is not None
                    else {"enabled": wanted}
                )
        return body


_HOSTED = OPENAI | _TOOLS
_ANY_FORM: frozenset[Form] = frozenset({"json_object", "json_schema", "regex", "choice", "grammar"})

CHAT_DIALECTS: Mapping[Server, ChatDialect] = {
    "enginebay": ChatDialect(
        known=(ALL - {"constraint", "prompt_logprobs"}) | _TOOLS | _TEMPLATE | {CONTINUOUS},
        thinking="enginebay",
        forms=_ANY_FORM,
        bans=True,
        salts=True,
        ranks=True,
    ),
    "vllm": ChatDialect(
        known=COMMON
        | TOKENS
        | {"include_stop_str_in_output", "allowed_token_ids"}
        | _TOOLS
        | _TEMPLATE
        | {CONTINUOUS},
        thinking="template",
        forms=_ANY_FORM,
        salts=True,
    ),
    # A seed counts only where the server was started with deterministic inference.
    "sglang": ChatDialect(
        known=((COMMON | TOKENS) - {"seed"}) | _TOOLS | _TEMPLATE | {CONTINUOUS},
        thinking="template",
        forms=frozenset({"json_object", "json_schema", "regex"}),
        names={"regex": "regex"},
    ),
    "llama-server": ChatDialect(
        known=COMMON | _SAMPLERS | _TOOLS | _TEMPLATE,
        thinking="template",
        forms=frozenset({"json_object", "json_schema", "grammar"}),
        names={
            "repetition_penalty": "repeat_penalty",
            "penalty_last_n": "repeat_last_n",
            "grammar": "grammar",
        },
    ),
    "openai": ChatDialect(
        known=_HOSTED | {"reasoning_effort"},
        names={"max_tokens": "max_completion_tokens"},
        thought_name=None,
    ),
    "openrouter": ChatDialect(
        known=_HOSTED
        | {"top_k", "min_p", "top_a", "repetition_penalty"}
        | {"reasoning_effort", "enable_thinking", "reasoning_budget"},
        thinking="openrouter",
        several=False,
        thought_name="reasoning",
    ),
    "deepseek": ChatDialect(
        known=(_HOSTED - {"seed", "logit_bias", "parallel_tool_calls"})
        | {"reasoning_effort", "enable_thinking"},
        thinking="deepseek",
        forms=frozenset({"json_object"}),
        several=False,
        developers=False,
    ),
    "mistral": ChatDialect(
        known=(_HOSTED - {"logit_bias", "logprobs"}) | {"reasoning_effort"},
        names={"seed": "random_seed"},
        tells_usage=False,  # it is told unasked, and the question refused
        thought_name=None,
        developers=False,
    ),
    "other": ChatDialect(known=_HOSTED | {"reasoning_effort"}),
}
