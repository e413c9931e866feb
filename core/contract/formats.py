"""The contract of reasoning and tool-call formats.

A format describes a syntax and makes one parser a choice. The law of every parser: however the
text is cut into `feed` calls, the joined parts are the same; nothing is lost, no fragment of a tag
leaks, nothing raises; what cannot be parsed comes back as content.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from core.contract.grammar import Case, Grammar, choice, optional, sequence
from core.contract.types import Part

Schemas = Mapping[str, Mapping[str, Any]]
"""The JSON Schema of each offered function's arguments, by the function's name."""


def new_call_id() -> str:
    """A unique id for a tool call, in OpenAI's form."""
    return f"call_{uuid4().hex[:24]}"


class Parser(ABC):
    """Turns the text of one choice into parts, as it arrives."""

    @abstractmethod
    def feed(self, text: str) -> list[Part]:
        """Parts that are certain now; text that could still become a tag is held back."""

    @abstractmethod
    def finish(self) -> list[Part]:
        """What was held back, when the text has ended. Called once."""


@dataclass(frozen=True, slots=True)
class Span:
    """How a stretch of text begins that belongs to the tool parser, and how it ends.

    `opens_with`: characters of which one must follow `start` (white space aside) for this to be a
    call rather than prose about one. Empty: anything may follow. `named`: a name must follow, and
    behind it a tag.
    """

    start: str
    end: str
    opens_with: str = ""
    named: bool = False


class ReasoningParser(Parser):
    """Turns the text of one choice into `ReasoningDelta` and `ContentDelta`."""

    @abstractmethod
    def settled(self) -> list[tuple[int, bool]]:
        """How many characters turned out to be thought (True) or not since the last call, in order.

        The tags of thought count as thought. Together these are the characters fed so far, less
        those that are still held back.
        """


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """The texts that begin and end thought.

    `close` ends it from outside, when a budget is used up, and leads on to the answer. `others`:
    what begins other things and so ends thought for a parser, though its end tag is missing.
    """

    start: str
    end: str
    close: str
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerMarks:
    """The texts around an answer: one of `opens` in front of it, one of `closes` behind it.

    Both may be left out, `opens` only if they are not `required`. `calls`: how what is no such
    answer, but calls, may begin, other than calls themselves.
    """

    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    required: bool = False
    calls: tuple[str, ...] = ()

    def around(self, content: Grammar) -> Grammar:
        """The grammar of an answer with this content."""
        opening = choice(*self.opens) if self.opens else ""
        closing = optional(choice(*self.closes)) if self.closes else ""
        in_front = opening if self.required or not opening else optional(opening)
        return sequence(in_front, content, closing)


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """How calls of certain functions are written.

    `forced`: all of an answer that calls. `cases`: what begins calls in an answer that may call,
    and what must follow then, to the end of these calls. `first`: the same for what begins a call
    only where the answer begins. `once`: nothing follows either, since it could be read as a call.
    `behind_thought`: all of an answer that calls, where that is not `forced` there.
    """

    forced: Grammar
    cases: tuple[Case, ...] = ()
    first: tuple[Case, ...] = ()
    once: bool = False
    behind_thought: Grammar | None = None


class ReasoningFormat(ABC):
    """A syntax for thinking aloud, registered by name.

    `example`: what a model writes in it, raw, for people who look for a format; may be empty.
    """

    example: str = ""

    @abstractmethod
    def matches(self, template: str) -> bool:
        """Whether the source of a chat template shows that its model writes this format.

        Asked where rendering the template does not show it, or shows several.
        """

    @abstractmethod
    def starts_inside(self, prompt: str) -> bool:
        """Whether generation after this rendered prompt begins inside reasoning."""

    @abstractmethod
    def parser(
        self, *, inside: bool, spans: Sequence[Span] = (), spans_in_thought: bool = True
    ) -> ReasoningParser:
        """A parser for one choice.

        `inside`: generation starts in reasoning. `spans`: stretches to pass on as content
        untouched, wherever they stand; without `spans_in_thought`, only outside of thought.
        """

    def marks(self, *, tools: bool) -> ThoughtMarks | None:
        """What a reasoning budget needs to know; None for a format that cannot be cut short.

        `tools`: whether tools are offered, so that what follows thought may be a call.
        """
        return None

    def answer_marks(self, *, behind_thought: bool) -> AnswerMarks:
        """What the model writes around an answer, other than thought.

        `behind_thought`: it follows the end tag of `marks`; else the completion begins with it.
        """
        return AnswerMarks()


class ToolFormat(ABC):
    """A syntax for tool calls, registered by name.

    `example`: what a model writes in it, raw, for people who look for a format; may be empty.
    """

    example: str = ""
    spans: tuple[Span, ...]

    @abstractmethod
    def matches(self, template: str) -> bool:
        """Whether the source of a chat template shows that its model writes this format.

        Asked where rendering the template does not show it, or shows several.
        """

    @abstractmethod
    def parser(self, schemas: Schemas | None = None) -> Parser:
        """A parser for one choice: text to `ToolCallDelta` and `ContentDelta`.

        Where the syntax does not tell a number from a text that looks like one, `schemas` do; a
        value that nothing is said about stays text.
        """

    def answer_parser(self) -> Parser | None:
        """A parser for one choice where no function is offered: text to `ContentDelta`.

        It takes away what the model writes around an answer, such as the name of whom it is for;
        None for a format whose models write nothing there.
        """
        return None

    def grammar(self, schemas: Schemas, *, parallel: bool) -> CallGrammar | None:
        """How the model writes calls of these functions; None for a format that cannot be forced.

        Whatever keeps to the grammar, `parser(schemas)` reads as calls of functions in `schemas`
        with arguments that are valid against their schemas. `parallel`: more than one call may be
        made. `SchemaError` for a schema whose arguments this format cannot say.
        """
        return None

    def new_call_id(self) -> str:
        """An id for a call that the model has written without one, in the form its templates take.

        Unique, since clients match results to calls by it.
        """
        return new_call_id()
