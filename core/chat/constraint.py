"""The one grammar of a whole answer: thought first, then content, or calls, or both.

What the parsers of the answer take for thought, calls and content is what stands in the grammar as
such, so both begin with the same prompt.
"""

from dataclasses import dataclass

from core.chat.checked import content_grammar, require_constraints
from core.chat.tool_choice import CallRules, call_grammar, call_rules
from core.errors import InvalidRequestError, UnsupportedParameterError
from core.grammar.expressions import (
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
from core.models import LoadedModel
from core.parsing import CallGrammar, ThoughtMarks
from core.schemas.chat import ChatCompletionRequest

# Models write line breaks between thought and what follows. JSON and calls do not mind.
_SPACE = optional(Pattern(r"[ \t\r\n]{1,8}"))


@dataclass(frozen=True, slots=True)
class ChatConstraint:
    """The grammar of an answer, None if it is free, and what else is known of it.

    `constrains_content`: the content was asked to keep to something. `plain_content`: and nothing
    but thought stands around it. `ignored`: the places in the body of what is not enforced.
    """

    grammar: Grammar | None = None
    constrains_content: bool = False
    plain_content: bool = False
    ignored: tuple[str, ...] = ()


def chat_constraint(body: ChatCompletionRequest, model: LoadedModel, prompt: str) -> ChatConstraint:
    """What a chat request asks of the completion of this prompt.

    `InvalidRequestError` for what cannot be enforced. Checking large schemas takes its time.
    """
    content = content_grammar(body, model)
    rules = call_rules(body)
    calls, ignored = _calls(body, rules, model)
    turn = _Turn.of(body, model, prompt, calls)
    if rules.forced:
        return ChatConstraint(turn.whole(None, calls), ignored=ignored)
    if content is not None:
        return ChatConstraint(
            turn.whole(content, calls),
            constrains_content=True,
            plain_content=turn.around(content, behind_thought=True) == content,
            ignored=ignored,
        )
    return ChatConstraint(turn.free(calls, rules) if calls else None, ignored=ignored)


def _calls(
    body: ChatCompletionRequest, rules: CallRules, model: LoadedModel
) -> tuple[CallGrammar | None, tuple[str, ...]]:
    """How calls are written, if they can be kept to that; the places of what is not enforced."""
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
            f"model {model.name!r} has no format of calls that can be forced "
            f"(it has {model.tools_name!r}): name its format as `tools` in config.yml",
            param=param,
        )
    if calls is None:
        loose = [f"{place}.strict" for place, each in rules.functions.items() if each.strict]
    return calls, tuple(loose)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What stands around an answer.

    `inside`: it begins in thought. `begun`: it goes on with a message, so there is no thought and
    no header in front. `in_thought`: calls that may be made in thought.
    """

    model: LoadedModel
    marks: ThoughtMarks | None
    inside: bool
    begun: bool
    in_thought: tuple[Case, ...]

    @classmethod
    def of(
        cls,
        body: ChatCompletionRequest,
        model: LoadedModel,
        prompt: str,
        calls: CallGrammar | None,
    ) -> "_Turn":
        format = model.reasoning
        begun = bool(body.continue_final_message or body.response_prefix)
        return cls(
            model,
            format.marks(tools=bool(body.offered_tools)) if format else None,
            inside=bool(format and format.starts_inside(prompt)),
            begun=begun,
            in_thought=calls.cases if calls and model.config.tools_in_reasoning else (),
        )

    def free(self, calls: CallGrammar, rules: CallRules) -> Grammar:
        """Text in which calls may be made."""
        once = calls.once or not rules.parallel
        answer = Free(calls.cases, calls.first, once=once)
        if self.marks is None or (self.in_thought and not calls.first):
            return answer  # thought is text like any other
        thought = sequence(UpTo(self.marks.end, self.in_thought), answer)
        if self.inside:
            return thought
        first = (Case(Text(self.marks.start), thought), *calls.first)
        return Free(calls.cases, first, once=once)

    def whole(self, content: Grammar | None, calls: CallGrammar | None) -> Grammar:
        """Content that keeps to a grammar, or calls, or one of both."""
        if self.inside and self.marks is None:
            raise InvalidRequestError(
                "the prompt ends inside reasoning, and nothing tells where that ends in the format "
                f"{self.model.reasoning_name!r}: the answer behind it cannot be constrained"
            )
        if self.begun and not self.inside:
            if content is None:
                raise InvalidRequestError(
                    "a call cannot be forced where the answer goes on with a message that has "
                    "begun (continue_final_message, response_prefix)",
                    param="tool_choice",
                )
            return content
        if self.marks is None:
            return self._answer(content, calls, behind_thought=False)
        thought = sequence(
            UpTo(self.marks.end, self.in_thought),
            self._answer(content, calls, behind_thought=True),
        )
        if self.inside:
            return thought
        at_once = self._answer(content, calls, behind_thought=False)
        return choice(at_once, sequence(self.marks.start, thought))

    def around(self, content: Grammar, *, behind_thought: bool) -> Grammar:
        """Content with what the model writes around it."""
        format = self.model.reasoning
        return format.around(content, behind_thought=behind_thought) if format else content

    def _answer(
        self, content: Grammar | None, calls: CallGrammar | None, *, behind_thought: bool
    ) -> Grammar:
        answers: list[Grammar] = []
        if content is not None:
            around = self.around(content, behind_thought=behind_thought)
            takes_space = behind_thought and isinstance(around, Json)
            answers.append(sequence(_SPACE, around) if takes_space else around)
        if calls:
            answers.append(sequence(_SPACE, calls.forced) if behind_thought else calls.forced)
        return choice(*answers)
