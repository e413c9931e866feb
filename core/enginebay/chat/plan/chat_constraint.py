"""The grammar of an entire answer: reasoning first, then content, tool calls, or both.

The grammar and the parsers of the answer agree on what is reasoning, calls and content, so both
are told the same about where it starts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from enginebay.chat.answer.answer_parser import AnswerForm
from enginebay.chat.plan.content_grammar import content_grammar, require_constraints
from enginebay.chat.plan.tool_choice import CallRules, call_grammar, call_rules
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.contract.errors import InvalidRequestError, UnsupportedParameterError
from enginebay.contract.formats import AnswerMarks, CallGrammar, ThoughtMarks
from enginebay.contract.grammar import (
    Case,
    Free,
    Grammar,
    Json,
    Pattern,
    Text,
    UpTo,
    choice,
    optional,
    sequence,
)
from enginebay.models.served import ServedModel

# Models write line breaks between reasoning and what follows. JSON and calls allow that.
_SPACE = optional(Pattern(r"[ \t\r\n]{1,8}"))


@dataclass(frozen=True, slots=True)
class ChatConstraint:
    """The grammar of an answer (None if unconstrained) and how to parse it.

    `form`: the tags around a fully constrained answer; text before it can only be reasoning.
    `ignored`: the places in the body of what is not enforced. `param`: the field of the body that
    the grammar comes from.
    """

    grammar: Grammar | None = None
    form: AnswerForm | None = None
    ignored: tuple[str, ...] = ()
    param: str | None = None


def chat_constraint(
    body: ChatCompletionRequest, model: ServedModel, *, inside: bool
) -> ChatConstraint:
    """The constraint a chat request puts on its answer. `inside`: that continues reasoning.

    `InvalidRequestError` for what cannot be enforced. Checking large schemas is slow.
    """
    content = content_grammar(body, model)
    rules = call_rules(body)
    calls, ignored = _calls(body, rules, model)
    turn = _Turn.of(body, model, calls, inside=inside)
    param = "functions" if body.old_names else "tools"
    if rules.forced:
        return ChatConstraint(turn.whole(None, calls), turn.form(None, calls), ignored, param)
    if content is not None:
        param, _ = body.asked_constraint() or (param, None)
        return ChatConstraint(turn.whole(content, calls), turn.form(content, calls), ignored, param)
    return ChatConstraint(turn.free(calls, rules) if calls else None, None, ignored, param)


def _calls(
    body: ChatCompletionRequest, rules: CallRules, model: ServedModel
) -> tuple[CallGrammar | None, tuple[str, ...]]:
    """The grammar of calls, if they can be constrained; the paths of what is not enforced."""
    if not rules.functions:
        return None, ()
    param = "tool_choice" if body.function_call is None else "function_call"
    if rules.forced:
        require_constraints(model, param)
    calls, loose = None, list[str]()
    if model.tools and model.info.constraints:
        calls, loose = call_grammar(rules, model.tools)
    if calls is None and rules.forced:
        raise UnsupportedParameterError(
            f"model {model.asked!r} has no tool format that can be forced (it has "
            f"{model.tools_name or 'none'}): set `tools` in config.yml",
            param=param,
        )
    if calls is None:
        loose += [f"{place}.strict" for place, each in rules.functions.items() if each.strict]
    return calls, tuple(loose)


@dataclass(frozen=True, slots=True)
class _Turn:
    """The grammar around an answer.

    `inside`: it begins inside reasoning. `begun`: it continues a message, so no reasoning or header
    precedes it. `in_thought`: calls allowed inside reasoning. `end_thought`: calls that end
    reasoning, since they begin like other things that end it.
    """

    model: ServedModel
    marks: ThoughtMarks | None
    inside: bool
    begun: bool
    in_thought: tuple[Case, ...]
    end_thought: tuple[Case, ...]

    @classmethod
    def of(
        cls,
        body: ChatCompletionRequest,
        model: ServedModel,
        calls: CallGrammar | None,
        *,
        inside: bool,
    ) -> "_Turn":
        format = model.reasoning
        marks = format.marks(tools=bool(body.offered_tools)) if format else None
        others = marks.others if marks else ()
        cases = calls.cases if calls else ()
        end_thought = tuple(case for case in cases if _begins(case, others))
        in_thought = tuple(case for case in cases if case not in end_thought)
        return cls(
            model,
            marks,
            inside=inside,
            begun=not inside and bool(body.continue_final_message or body.response_prefix),
            in_thought=in_thought if model.config.tools_in_reasoning else (),
            end_thought=end_thought,
        )

    def free(self, calls: CallGrammar, rules: CallRules) -> Grammar:
        """Text in which calls may be made, and which may end anywhere but in a call."""
        once = calls.once or not rules.parallel
        answer = Free(calls.cases, calls.first, once=once)
        if self.marks is None or (self.in_thought and not calls.first):
            return answer  # reasoning is text like any other
        within = [
            replace(case, goes_on=case.goes_on or not once)
            for case in (*self.in_thought, *self.end_thought)
        ]
        ends = [self.marks.end]
        ends += [
            text
            for text in self.marks.others
            if not any(_begins(case, [text]) for case in self.end_thought)
        ]
        behind = [Case(Text(end), answer) for end in ends]
        reasoning = Free((*within, *behind), once=True)
        if self.inside:
            return reasoning
        first = (Case(Text(self.marks.start), reasoning), *calls.first)
        return Free(calls.cases, first, once=once)

    def whole(self, content: Grammar | None, calls: CallGrammar | None) -> Grammar:
        """Constrained content, or calls, or either."""
        if self.inside and self.marks is None:
            raise InvalidRequestError(
                "the prompt ends inside reasoning, and the format "
                f"{self.model.reasoning_name!r} does not say where it ends: the answer "
                "after it cannot be constrained"
            )
        if self.begun:
            if content is None:
                raise InvalidRequestError(
                    "a tool call cannot be forced when the answer continues a message "
                    "(continue_final_message, response_prefix)",
                    param="tool_choice",
                )
            return content
        if self.marks is None:
            return self._answer(content, calls, behind_thought=False)
        reasoning = sequence(
            UpTo(self.marks.end, without=self.marks.others),
            self._answer(content, calls, behind_thought=True),
        )
        if self.inside:
            return reasoning
        at_once = self._answer(content, calls, behind_thought=False)
        return choice(at_once, sequence(self.marks.start, reasoning))

    def form(self, content: Grammar | None, calls: CallGrammar | None) -> AnswerForm:
        """How to parse what `whole` matches."""
        if self.begun:
            return AnswerForm(None, AnswerMarks(), AnswerMarks(), inside=False, trim=False)
        at_once, behind = (self._marks(behind_thought=each) for each in (False, True))
        if content is None:
            at_once, behind = AnswerMarks(at_once.calls), AnswerMarks(behind.calls)
        elif calls is None:
            at_once, behind = replace(at_once, calls=()), replace(behind, calls=())
        trim = content is None or isinstance(content, Json)
        return AnswerForm(self.marks, at_once, behind, inside=self.inside, trim=trim)

    def _marks(self, *, behind_thought: bool) -> AnswerMarks:
        format = self.model.reasoning
        return format.answer_marks(behind_thought=behind_thought) if format else AnswerMarks()

    def _answer(
        self, content: Grammar | None, calls: CallGrammar | None, *, behind_thought: bool
    ) -> Grammar:
        answers: list[Grammar] = []
        if content is not None:
            marks = self._marks(behind_thought=behind_thought)
            takes_space = behind_thought and isinstance(content, Json) and not marks.required
            around = marks.around(content)
            answers.append(sequence(_SPACE, around) if takes_space else around)
        if calls and behind_thought:
            answers.append(calls.behind_thought or sequence(_SPACE, calls.forced))
        elif calls:
            answers.append(calls.forced)
        return choice(*answers)


def _begins(case: Case, texts: Iterable[str]) -> bool:
    """Whether a case opens with one of these."""
    opening = case.opening.text if isinstance(case.opening, Text) else ""
    return any(opening.startswith(text) for text in texts)
