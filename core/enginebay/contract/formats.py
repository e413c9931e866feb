"""The interface of reasoning and tool-call formats.

A format describes a syntax and creates one parser per choice. Every parser must obey one law:
however the text is split into `feed` calls, the joined parts are the same; nothing is lost, no
fragment of a tag leaks, nothing raises; what cannot be parsed comes back as content.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from enginebay.contract.grammar import Case, Grammar, choice, optional, sequence
from enginebay.contract.sampling_params import AsideMarks
from enginebay.contract.types import Part

Schemas = Mapping[str, Mapping[str, Any]]
"""The JSON Schema of each offered function's arguments, by the function's name."""


def is_json(text: str) -> bool:
    """Whether a text is one value of JSON, as the arguments of a call have to be."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def new_call_id() -> str:
    """A unique id for a tool call, in OpenAI's form."""
    return f"call_{uuid4().hex[:24]}"


@dataclass(frozen=True, slots=True)
class Passthrough:
    """Text without any character of `stops` is reasoning or content (`kind`), just as it stands."""

    kind: Literal["content", "reasoning"]
    stops: str = ""


class Parser(ABC):
    """Turns the text of one choice into parts, as it arrives."""

    @abstractmethod
    def feed(self, text: str) -> list[Part]:
        """Parts that are certain now; text that could still become a tag is held back."""

    @abstractmethod
    def finish(self) -> list[Part]:
        """What was held back, once the text has ended. Called once."""

    def passthrough(self) -> Passthrough | None:
        """Which text need not be fed until something is fed again; None if all of it has to be.

        Any amount of such text would come back as it stands, at once, and leave the parser as it
        is, but for what `settled` counts. Most of an answer is such text, so this saves most of the
        time that parsing takes.
        """
        return None


@dataclass(frozen=True, slots=True)
class Span:
    """How a span of text that belongs to the tool parser begins and ends.

    `opens_with`: characters of which one must follow `start` (white space aside) for this to be a
    call rather than prose about one. Empty: anything may follow. `named`: a name must follow, and
    after it a tag.
    """

    start: str
    end: str
    opens_with: str = ""
    named: bool = False


class ReasoningParser(Parser):
    """Turns the text of one choice into `ReasoningDelta` and `ContentDelta`."""

    @abstractmethod
    def settled(self) -> list[tuple[int, bool]]:
        """Runs of characters that are reasoning (True) or not, in order, since the last call.

        Reasoning tags count as reasoning. The sum is the characters fed so far, minus those still
        held back.
        """

    def end_reasoning(self) -> list[Part]:
        """What was held back, where a grammar has ended reasoning with the text fed so far.

        The end tag is real then, even if it seems to be in code.
        """
        return []


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """The tags that begin and end reasoning.

    `close` is forced when a budget is used up, and leads on to the answer. `others`: starts of
    other syntax that end reasoning for a parser even without its end tag.
    """

    start: str
    end: str
    close: str
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerMarks:
    """The texts around an answer: one of `opens` before it, one of `closes` after it.

    Both may be left out, `opens` only if they are not `required`. `calls`: other ways in which tool
    calls in the place of an answer may begin.
    """

    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    required: bool = False
    calls: tuple[str, ...] = ()

    def around(self, content: Grammar) -> Grammar:
        """The grammar of an answer around this content."""
        opening = choice(*self.opens) if self.opens else ""
        closing = optional(choice(*self.closes)) if self.closes else ""
        in_front = opening if self.required or not opening else optional(opening)
        return sequence(in_front, content, closing)


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """The grammar of calls of certain functions.

    `forced`: an entire answer that must call. `cases`: triggers of calls in an answer that may
    call, and what must follow to the end of these calls. `first`: the same for triggers that count
    only at the start of the answer. `once`: nothing may follow, since it could be read as a call.
    `behind_thought`: replaces `forced` after reasoning, if different there.
    """

    forced: Grammar
    cases: tuple[Case, ...] = ()
    first: tuple[Case, ...] = ()
    once: bool = False
    behind_thought: Grammar | None = None


@dataclass(frozen=True, slots=True)
class Margins:
    """The whitespace that the templates of a format write around reasoning.

    `lead`: after the start tag. `tail`: before the end tag. `gap`: between the end tag and the
    answer, without the tags of the answer.
    """

    lead: str = ""
    tail: str = ""
    gap: str = ""


class ReasoningFormat(ABC):
    """A reasoning format, registered by name.

    `example`: raw model output in this format, to help people recognise it; may be empty.
    """

    example: str = ""

    @abstractmethod
    def matches(self, template: str) -> bool:
        """Whether a chat template's source shows that its model writes this format.

        Called where rendering the template is inconclusive.
        """

    @abstractmethod
    def starts_inside(self, prompt: str) -> bool:
        """Whether generation after this rendered prompt begins inside reasoning."""

    @abstractmethod
    def parser(
        self, *, inside: bool, spans: Sequence[Span] = (), spans_in_thought: bool = True
    ) -> ReasoningParser:
        """A parser for one choice.

        `inside`: generation starts in reasoning. `spans`: text to pass through untouched as
        content, wherever it is; without `spans_in_thought`, only outside reasoning.
        """

    def marks(self, *, tools: bool) -> ThoughtMarks | None:
        """The tags for a reasoning budget; None for a format that cannot be cut short.

        `tools`: whether tools are offered, so that a call may follow reasoning.
        """
        return None

    def asides(self) -> tuple[AsideMarks, ...]:
        """The marks around what is no answer, so that stop strings do not match there.

        A completion that begins inside reasoning begins inside the first of them. By default they
        are the tags in `marks`.
        """
        marks = self.marks(tools=False)
        if marks is None:
            return ()
        return (AsideMarks(starts=(marks.start,), ends=(marks.end, *marks.others), comes="once"),)

    def answer_marks(self, *, behind_thought: bool) -> AnswerMarks:
        """What the model writes around an answer, apart from reasoning.

        `behind_thought`: it follows the end tag of `marks`; else the completion begins with it.
        """
        return AnswerMarks()

    def margins(self) -> Margins:
        """The whitespace around reasoning, which is no part of the reasoning or of the answer."""
        return Margins()

    def syntax(self) -> tuple[str, ...]:
        """The texts that the format consists of, except reasoning and answers.

        The parser receives the special tokens that occur in one of these texts. By default these
        are the example and the texts of `marks` and `answer_marks`.
        """
        texts = [self.example]
        for value in (True, False):
            thought, answer = self.marks(tools=value), self.answer_marks(behind_thought=value)
            texts += [*answer.opens, *answer.closes, *answer.calls]
            texts += [thought.start, thought.end, thought.close, *thought.others] if thought else []
        return tuple(dict.fromkeys(filter(None, texts)))


class ToolFormat(ABC):
    """A tool-call format, registered by name.

    `example`: raw model output in this format, to help people recognise it; may be empty.
    """

    example: str = ""
    spans: tuple[Span, ...]

    @abstractmethod
    def matches(self, template: str) -> bool:
        """Whether a chat template's source shows that its model writes this format.

        Called where rendering the template is inconclusive.
        """

    @abstractmethod
    def parser(self, schemas: Schemas | None = None) -> Parser:
        """A parser for one choice: text to `ToolCallDelta` and `ContentDelta`.

        Where the syntax does not distinguish a number from text that looks like one, `schemas`
        decide; a value without a schema stays text.
        """

    def syntax(self) -> tuple[str, ...]:
        """The texts that the format consists of, except names, arguments and answers.

        The parser receives the special tokens that occur in one of these texts. By default these
        are the example and the starts and ends of `spans`.
        """
        ends = (text for span in self.spans for text in (span.start, span.end))
        return tuple(dict.fromkeys(filter(None, (self.example, *ends))))

    def answer_parser(self) -> Parser | None:
        """A parser for one choice where no function is offered: text to `ContentDelta`.

        It strips what the model writes around an answer, such as a recipient name; None for a
        format whose models write nothing there.
        """
        return None

    def grammar(self, schemas: Schemas, *, parallel: bool) -> CallGrammar | None:
        """The grammar of calls of these functions; None for a format that cannot be forced.

        `parser(schemas)` reads everything that matches the grammar as calls of functions in
        `schemas` with valid arguments. `parallel`: more than one call may be made. `SchemaError`
        for a schema that this format cannot express.
        """
        return None

    def new_call_id(self) -> str:
        """An id for a call that the model has written without one, in the form its templates take.

        Unique, since clients match results to calls by it.
        """
        return new_call_id()
