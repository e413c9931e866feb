"""Harmony, the format of gpt-oss: reasoning, preambles, tool calls and answers on channels.

https://cookbook.openai.com/articles/openai-harmony
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from enginebay import (
    CallGrammar,
    Parser,
    Part,
    Passthrough,
    SchemaError,
    Schemas,
    Span,
    ToolCallDelta,
    ToolFormat,
)
from enginebay_parsers.arguments.call_grammar import argument_grammars
from enginebay_parsers.channels.frames import Kind, MessageReader, Segment, Tags
from enginebay_parsers.channels.harmony_grammar import harmony_grammar
from enginebay_parsers.stream.delta_builder import DeltaBuilder
from enginebay_parsers.stream.json_scanner import JsonScanner, skip_space

ANALYSIS = r"<\|channel\|> *analysis(?!.*<\|channel\|>)"

TAGS = Tags(
    begin="<|start|>",
    channel="<|channel|>",
    message="<|message|>",
    ends=("<|end|>", "<|call|>", "<|return|>"),
    # Tools that come with the model (browser, python) think aloud on the channel `analysis`.
    call=re.compile(rf"to=functions\.|^(?!.*{ANALYSIS}).*to=(?!assistant|user|all)"),
)

# The headers of answers: the role alone, or a channel other than `analysis`, without a recipient.
TO_USER = (
    r"^(?!.*to=(?!assistant|user|all)[^<]*(?:<\|channel\|>[^<]*)?(?:<\|constrain\|>[^<]*)?$)"
    r".*(?:<\|start\|>|<\|channel\|> *(?!analysis))\w*\s*(?:<\|constrain\|>[^<]*)?$"
)

_RECIPIENT = re.compile(r"to=(functions\.)?((?!functions\.)[^\s<]+)")


@dataclass(frozen=True, slots=True)
class HarmonyCalls(ToolFormat):
    """Messages to `functions.NAME`, whose body is the arguments.

    The recipient stands in the role (`<|start|>assistant to=functions.f<|channel|>commentary`) or
    in the channel (`<|channel|>commentary to=functions.f`), with `<|constrain|>json` or without.
    """

    example: str = ""
    spans: tuple[Span, ...] = field(
        default=(Span(f"{TAGS.begin}assistant to=functions.", "<|call|>"),), init=False
    )

    def matches(self, template: str) -> bool:
        """Whether the chat template has channels."""
        return TAGS.channel in template

    def grammar(self, schemas: Schemas, *, parallel: bool) -> CallGrammar:
        """Calls as the chat template writes them, and as the models do.

        Headers of other messages have no recipient. `SchemaError` for a function with a name that
        could not be read back.
        """
        for name in schemas:
            self._require_readable(name)
        return harmony_grammar(argument_grammars(schemas), parallel=parallel)

    def syntax(self) -> tuple[str, ...]:
        """The tags of messages, and the tag of a type in their headers."""
        return (*TAGS.texts, "<|constrain|>")

    def _require_readable(self, name: str) -> None:
        parser = self.parser({name: {}})
        parts = parser.feed(f" to=functions.{name}{TAGS.channel}commentary json{TAGS.message}{{}}")
        if [part.name for part in parts if isinstance(part, ToolCallDelta)][:1] != [name]:
            raise SchemaError("", f"the model cannot write the name {name!r} in a call")

    def parser(self, schemas: Schemas | None = None) -> Parser:
        """A parser for one choice.

        A call is certain when its header is whole. Arguments in brackets come out as they arrive;
        a body that is none comes when it is whole, as written, and an empty one means `{}`. What
        follows the brackets comes back as content, and so does a message to a recipient that
        is neither in `functions` nor among the `schemas`.
        """
        return _HarmonyParser(schemas)


class _HarmonyParser(Parser):
    def __init__(self, schemas: Schemas | None) -> None:
        self._schemas = schemas
        self._reader = MessageReader(TAGS)
        self._deltas = DeltaBuilder()
        self._calls = 0
        self._in_call = False
        self._json: JsonScanner | None = None
        self._trails = False
        self._unbracketed: list[str] = []

    def feed(self, text: str) -> list[Part]:
        return self._read(self._reader.feed(text))

    def passthrough(self) -> Passthrough | None:
        stops = None if self._in_call else self._reader.stops()
        return None if stops is None else Passthrough("content", stops)

    def finish(self) -> list[Part]:
        self._read_all(self._reader.finish())
        self._end_call(cut_off=True)
        return self._deltas.take()

    def _read(self, segments: Iterable[Segment]) -> list[Part]:
        self._read_all(segments)
        return self._deltas.take()

    def _read_all(self, segments: Iterable[Segment]) -> None:
        for kind, text in segments:
            if kind is Kind.BODY and self._in_call:
                self._read_arguments(text)
            elif kind is Kind.BODY:
                self._deltas.content(text)
            elif kind is Kind.END:
                self._end_call(cut_off=False)
            elif kind is Kind.HEADER:
                self._end_call(cut_off=False)
                self._begin(text)

    def _begin(self, header: str) -> None:
        recipient = _RECIPIENT.search(header)
        if not recipient or not TAGS.is_call(header):
            return
        functions, name = recipient.groups()
        if functions or self._schemas is None or name in self._schemas:
            self._deltas.name(self._calls, name)
            self._calls += 1
            self._in_call = True

    def _read_arguments(self, text: str) -> None:
        at = 0
        if self._json is None and not self._unbracketed:
            at = skip_space(text)
            if text[at : at + 1] in ("{", "["):
                self._json = JsonScanner()
        if self._json is None:
            if at < len(text):
                self._unbracketed.append(text[at:])
            return
        written: list[str] = []
        end = self._json.feed(text, at, written)
        self._deltas.arguments(self._calls - 1, "".join(written))
        behind = text[end:] if self._trails else text[end:].lstrip()
        self._trails = self._trails or bool(behind)
        self._deltas.content(behind)

    def _end_call(self, *, cut_off: bool) -> None:
        if self._in_call and self._json is None:
            text = "".join(self._unbracketed).rstrip()
            empty = "" if cut_off else "{}"
            self._deltas.arguments(self._calls - 1, empty if text in ("", "null") else text)
        self._in_call, self._json, self._trails = False, None, False
        self._unbracketed.clear()
