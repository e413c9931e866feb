"""Detects a chat template's features by rendering small conversations with it.

Templates do not declare their features: some reject what they do not support, some drop it
silently. Either shows when a probe word is missing from the output.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from enginebay.models.template.beginning import Beginning
from enginebay.models.template.probe_messages import (
    CALL_ARGUMENTS,
    CALL_JSON,
    CALL_NAME,
    CALL_TOOL,
    SHORT_ID,
    Message,
    reasoning,
)
from enginebay.models.template.template import Template, TemplateError, TemplateLateError

ContentFormat = Literal["string", "openai"]
ArgumentsFormat = Literal["object", "string"]
NoContent = Literal["absent", "empty", "null"]

_SYSTEM, _SECOND, _LATER, _DEVELOPER = "sysalpha", "sysbeta", "sysgamma", "devdelta"
_USER, _ANSWER, _NEXT, _RESULT = "useralpha", "asstalpha", "userbeta", "toolres"
_THOUGHT = "thoughtalpha"
_SECOND_CITY, _SECOND_ID = "Bergen", "f5G6h7I8j"
_LONG_ID = "call_0123456789abcdef01234567"


class TemplateFeatures:
    """A template and its features; each is probed once, on first use.

    `beginning`: what the model's tokenizer puts in front of texts. `own`: whether the template came
    with the model, and so decides by itself whether prompts begin with that. Probes raise
    `TemplateLateError` if the template takes too long; they are tried again when asked again.
    """

    def __init__(
        self, template: Template, beginning: Beginning | None = None, *, own: bool = True
    ) -> None:
        self.template = template
        self.own = own
        self.beginning = beginning or Beginning()
        self._media_texts: dict[str, str] = {}

    def render(self, messages: Sequence[Message], **options: Any) -> str | None:
        """The rendered probe; None if the template rejects it."""
        tools = options.pop("tools", None) or self.no_tools
        variables = {**self.extra_variables(tools), **(options.pop("variables", None) or {})}
        options |= {"tools": tools}
        try:
            return self.template.render(messages, drop_nulls=False, variables=variables, **options)
        except TemplateLateError:
            raise
        except TemplateError:
            return None

    def missing_beginning(self, text: str) -> str:
        """What the tokenizer puts in front of texts, if this prompt is to get it and has it not.

        The model's own template decides for itself.
        """
        return "" if self.own or self.beginning.is_written_in(text) else self.beginning.text

    @cached_property
    def bos(self) -> str:
        """Where the BOS of prompts comes from."""
        asked = self.render([self.says("user", _USER)]) or ""
        bos = self.beginning.text or self.template.special_tokens.get("bos_token", "")
        if bos and asked.lstrip().startswith(bos):
            return f"the template writes {bos!r}"
        if self.own:
            return "none: the model's own template writes none"
        if self.beginning.text:
            return f"{bos!r} is added, as the tokenizer does: the template is not the model's own"
        return "none: the tokenizer adds none"

    @cached_property
    def no_tools(self) -> Sequence[Mapping[str, Any]] | None:
        """`tools` of a request without tools: null, or an empty list if the template needs one.

        Templates made only for tools iterate them unconditionally.
        """
        asked = [{"role": "user", "content": _USER}]
        candidates: tuple[list[Mapping[str, Any]] | None, ...] = (None, [])
        for none in candidates:
            try:
                self.template.render(asked, tools=none, variables=self.extra_variables(none))
            except TemplateLateError:
                raise
            except TemplateError:
                continue
            return none
        return None

    def extra_variables(
        self,
        tools: Sequence[Mapping[str, Any]] | None,
        functions: Sequence[Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Variables that only a few templates read: `functions`, `datetime` (FireFunction).

        `functions`, if not given, are those of the tools; a list or, for templates that join text,
        its JSON.
        """
        extra: dict[str, Any] = {}
        if "datetime" in self.template.variables:
            extra["datetime"] = datetime.now().astimezone().strftime("%Y-%m-%d")
        if "functions" in self.template.variables:
            functions = functions or [tool["function"] for tool in tools or ()]
            as_text = json.dumps(functions, indent=4)
            extra["functions"] = as_text if self._joins_functions else functions
        return extra

    @cached_property
    def _joins_functions(self) -> bool:
        def renders(functions: object) -> bool:
            variables = {"functions": functions, "datetime": "today"}
            try:
                self.template.render([self.says("user", _USER)], variables=variables)
            except TemplateLateError:
                raise
            except TemplateError:
                return False
            return True

        return not renders([CALL_TOOL["function"]]) and renders("[]")

    def says(self, role: str, text: str, **fields: Any) -> Message:
        """A message whose content has the form that the template reads."""
        content = text if self.content_format == "string" else [{"type": "text", "text": text}]
        return {"role": role, "content": content, **fields}

    @cached_property
    def content_format(self) -> ContentFormat:
        """Whether content must be text, or a list of parts for a template that supports only those.

        Such a template splits text into characters, or fails.
        """
        if "functions" in self.template.variables:  # whose form is told with content
            return "string"
        part = {"type": "text", "text": _USER}
        if self._shows([{"role": "user", "content": _USER}], _USER):
            return "string"
        return "openai" if self._shows([{"role": "user", "content": [part]}], _USER) else "string"

    @cached_property
    def knows_system(self) -> bool:
        """Whether a leading system message is supported."""
        return self._shows([self.says("system", _SYSTEM), self.says("user", _USER)], _SYSTEM, _USER)

    @cached_property
    def takes_several_systems(self) -> bool:
        """Whether two leading system messages are supported."""
        messages = [
            self.says("system", _SYSTEM),
            self.says("system", _SECOND),
            self.says("user", _USER),
        ]
        return self._shows(messages, _SYSTEM, _SECOND, _USER)

    @cached_property
    def takes_later_systems(self) -> bool:
        """Whether system messages after others, and last, are supported."""
        messages = [
            self.says("user", _USER),
            self.says("assistant", _ANSWER),
            self.says("system", _SYSTEM),
            self.says("user", _NEXT),
            self.says("system", _LATER),
        ]
        text = self.render(messages) or ""
        order = [text.find(word) for word in (_USER, _ANSWER, _SYSTEM, _NEXT, _LATER)]
        return -1 not in order and order == sorted(order)

    @cached_property
    def knows_developer(self) -> bool:
        """Whether the template supports `developer` messages."""
        if "developer" not in self.template.source:
            return False
        messages = [self.says("developer", _DEVELOPER), self.says("user", _USER)]
        return self._shows(messages, _DEVELOPER, _USER)

    @cached_property
    def takes_users_in_a_row(self) -> bool:
        """Whether one user message can follow another."""
        return self._shows([self.says("user", _USER), self.says("user", _NEXT)], _USER, _NEXT)

    @cached_property
    def takes_assistants_in_a_row(self) -> bool:
        """Whether one assistant message can follow another."""
        answers = [self.says("assistant", _ANSWER), self.says("assistant", _THOUGHT)]
        messages = [self.says("user", _USER), *answers, self.says("user", _NEXT)]
        return self._shows(messages, _USER, _ANSWER, _THOUGHT, _NEXT)

    @cached_property
    def takes_opening_assistant(self) -> bool:
        """Whether an assistant message can come before all user messages."""
        messages = [self.says("assistant", _ANSWER), self.says("user", _USER)]
        if not self._shows(messages, _ANSWER, _USER):
            return False
        system = self.says("system", _SYSTEM)
        return not self.knows_system or self._shows([system, *messages], _SYSTEM, _ANSWER, _USER)

    @cached_property
    def opening_user(self) -> Message:
        """A user message in front of an opening assistant message: empty if the template may."""
        answered = [self.says("assistant", _ANSWER), self.says("user", _NEXT)]
        empty = self.says("user", "")
        return empty if self._shows([empty, *answered], _ANSWER, _NEXT) else self.says("user", ".")

    @cached_property
    def knows_tools(self) -> bool:
        """Whether the tools of a request get into the prompt."""
        return self._shows([self.says("user", _USER)], CALL_NAME, tools=[CALL_TOOL])

    @property
    def arguments_format(self) -> ArgumentsFormat | None:
        """Whether arguments of earlier calls must be objects or JSON; None: neither is rendered.

        Most templates serialize or iterate objects, a few join JSON text.
        """
        return self._call_form[0]

    @property
    def content_of_calls(self) -> NoContent:
        """The content of a message that has only calls.

        transformers leaves it out. Some templates fail on that or drop the calls; they get an empty
        text or null.
        """
        return self._call_form[1]

    @cached_property
    def _call_form(self) -> tuple[ArgumentsFormat | None, NoContent]:
        forms: dict[ArgumentsFormat, object] = {"object": CALL_ARGUMENTS, "string": CALL_JSON}
        contents: tuple[NoContent, ...] = ("absent", "empty", "null")
        trials = [(form, content) for form in forms for content in contents]
        shown = [
            (form, content) for form, content in trials if self._call_shows(forms[form], content)
        ]
        for form, content in shown:
            if self._conversation_goes_on(self.call_message(forms[form], content=content)):
                return form, content
        if shown:
            return shown[0]
        return None, "absent" if self._call_text(CALL_ARGUMENTS, "absent") else "empty"

    def _call_shows(self, arguments: object, content: NoContent) -> bool:
        text = self._call_text(arguments, content)
        if not text or CALL_ARGUMENTS["city"] not in text or "{'city': 'Oslo'" in text:
            return False  # the last is an object as Python writes it, and no JSON
        empty = self._call_text(arguments, "empty") or ""
        return content == "empty" or text.count("None") <= empty.count("None")

    def _conversation_goes_on(self, call: Message) -> bool:
        messages = [self.says("user", _USER), call, self._result(SHORT_ID)]
        more = [self.says("assistant", _ANSWER), self.says("user", _NEXT)]
        return (
            self.render(messages, tools=self.trial_tools) is not None
            and self.render([*messages, *more], tools=self.trial_tools) is not None
        )

    @cached_property
    def takes_text_arguments(self) -> bool:
        """Whether arguments can be text that is not JSON, as a model may have written them."""
        return self._call_shows("Oslo for 3 days", self.content_of_calls)

    @cached_property
    def takes_several_calls(self) -> bool:
        """Whether one message can hold several calls."""
        call = self.known_call
        arguments: Any = {**CALL_ARGUMENTS, "city": _SECOND_CITY}
        if self.arguments_format == "string":
            arguments = json.dumps(arguments)
        more = self.call_message(arguments, id=_SECOND_ID)["tool_calls"]
        both = {**call, "tool_calls": [*call["tool_calls"], *more]}
        messages = [self.says("user", _USER), both]
        return self._shows(
            messages, _SECOND_CITY, tools=self.trial_tools, add_generation_prompt=False
        )

    @cached_property
    def knows_tool_results(self) -> bool:
        """Whether `tool` messages get into the prompt."""
        return self._result_shows(_LONG_ID) or self._result_shows(SHORT_ID)

    @cached_property
    def takes_any_call_id(self) -> bool:
        """False for templates that insist on ids of nine letters and digits (Mistral)."""
        return self._result_shows(_LONG_ID) or not self._result_shows(SHORT_ID)

    @cached_property
    def knows_reasoning(self) -> bool:
        """Whether the reasoning of an earlier answer gets into the prompt."""
        return self._shows(
            [
                self.says("user", _USER),
                self.says("assistant", _ANSWER, **reasoning(_THOUGHT)),
            ],
            _THOUGHT,
            add_generation_prompt=False,
        )

    @cached_property
    def written_whole(self) -> frozenset[str]:
        """Those of messages, tools and functions of which all keys get into the prompt, as JSON."""
        function = {**CALL_TOOL["function"], "key_gamma": _RESULT}
        tool = {**CALL_TOOL, "key_beta": _ANSWER, "function": function}
        text = self.render([self.says("user", _USER, key_alpha=_NEXT)], tools=[tool]) or ""
        words = {"messages": _NEXT, "tools": _ANSWER, "functions": _RESULT}
        return frozenset(name for name, word in words.items() if word in text)

    def media_text(self, kind: str) -> str:
        """A prompt with two texts and a part of this kind of media; empty if it takes none."""
        if kind not in self._media_texts:
            texts = [{"type": "text", "text": text} for text in (_USER, _NEXT)]
            content = [texts[0], {"type": kind}, texts[1]]
            prompt = self.render([{"role": "user", "content": content}]) or ""
            # Some templates write all media before the texts.
            shown = _USER in prompt and _NEXT in prompt
            self._media_texts[kind] = prompt if shown else ""
        return self._media_texts[kind]

    @property
    def knows_documents(self) -> bool:
        """Whether the template mentions `documents`."""
        return "documents" in self.template.source

    def call_message(
        self, arguments: Any, *, id: str = SHORT_ID, content: NoContent = "empty"
    ) -> Message:
        """An assistant message with one call of the probe tool."""
        function = {"name": CALL_NAME, "arguments": arguments}
        call = {"id": id, "type": "function", "function": function}
        message = self.says("assistant", "", tool_calls=[call])
        if content == "empty":
            return message
        without = {name: value for name, value in message.items() if name != "content"}
        return without if content == "absent" else {**without, "content": None}

    @property
    def known_call(self) -> Message:
        """The probe call, in the form that the template reads."""
        arguments = CALL_JSON if self.arguments_format == "string" else CALL_ARGUMENTS
        return self.call_message(arguments, content=self.content_of_calls)

    @cached_property
    def trial_tools(self) -> Sequence[Mapping[str, Any]] | None:
        """The probe tool; None for a template that fails on tools."""
        asked = [self.says("user", _USER)]
        return None if self.render(asked, tools=[CALL_TOOL]) is None else [CALL_TOOL]

    def _call_text(self, arguments: Any, content: NoContent) -> str | None:
        """A call in the history; some templates require its result after it."""
        messages = [self.says("user", _USER), self.call_message(arguments, content=content)]
        text = self.render(messages, tools=self.trial_tools, add_generation_prompt=False)
        if text is not None:
            return text
        return self.render([*messages, self._result(SHORT_ID)], tools=self.trial_tools)

    def _result(self, id: str) -> Message:
        return self.says("tool", _RESULT, tool_call_id=id, name=CALL_NAME)

    def _result_shows(self, id: str) -> bool:
        arguments = CALL_JSON if self.arguments_format == "string" else CALL_ARGUMENTS
        call = self.call_message(arguments, id=id, content=self.content_of_calls)
        messages = [self.says("user", _USER), call, self._result(id)]
        return self._shows(messages, _RESULT, tools=self.trial_tools)

    def _shows(self, messages: Sequence[Message], *words: str, **options: Any) -> bool:
        text = self.render(messages, **options)
        return text is not None and all(word in text for word in words)
