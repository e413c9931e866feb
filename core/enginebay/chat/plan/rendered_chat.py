"""A chat between its prompt and its tokens."""

from dataclasses import dataclass

from enginebay.chat.answer.recipe import CollectorRecipe
from enginebay.chat.answer.thought_end import ThoughtEnd
from enginebay.chat.plan.chat_constraint import ChatConstraint
from enginebay.chat.plan.media_tokens import media_tokens
from enginebay.chat.plan.params import PlannedParams
from enginebay.chat.plan.prompt import Prompt
from enginebay.chat.plan.prompt_tokens import PromptTokens, prompt_tokens
from enginebay.chat.plan.reasoning import is_merged, reasoning_margins
from enginebay.chat.plan.tool_choice import argument_schemas, call_rules, reads_calls
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.models.served import ServedModel


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A chat request whose prompt has been rendered but not tokenized yet.

    `starts_in_reasoning`: the answer continues reasoning. `thought_end`: how its thought can be
    ended by force.
    `body` is without the `dropped` messages that were left out, as there is no room for them.
    """

    body: ChatCompletionRequest
    model: ServedModel
    params: PlannedParams
    prompt: Prompt
    constraint: ChatConstraint
    ignored: tuple[str, ...]
    starts_in_reasoning: bool
    thought_end: ThoughtEnd | None = None
    dropped: int = 0

    async def tokenize(self) -> PromptTokens:
        """The prompt's tokens; `ContextLengthExceededError` if they leave no room."""
        if self.prompt.pieces:
            return await media_tokens(self.model, self.prompt, self.body, self.params.params)
        return await prompt_tokens(
            self.model,
            self.prompt.text,
            self.body,
            self.params.params,
            add_special_tokens=self.prompt.add_special_tokens,
            param="messages",
        )

    @property
    def format_marks(self) -> tuple[str, ...]:
        """The texts that the parsers of the answer read, special tokens among them."""
        reasoning, tools, recipe = self.model.reasoning, self.model.tools, self.recipe
        marks = reasoning.syntax() if reasoning and recipe.reasoning else ()
        if tools and (recipe.tools or (recipe.answer and tools.answer_parser())):
            marks += tools.syntax()
        return tuple(dict.fromkeys(marks))

    @property
    def recipe(self) -> CollectorRecipe:
        """How the text of each choice is parsed."""
        body, model, form = self.body, self.model, self.constraint.form
        reads = model.tools is not None and reads_calls(body, model.config)
        rules = call_rules(body)
        return CollectorRecipe(
            reasoning=model.reasoning_name if model.reasoning else None,
            tools=model.tools_name if reads else None,
            answer=None if reads or form else model.tools_name,
            schemas=argument_schemas(body),
            starts_in_reasoning=self.starts_in_reasoning,
            tools_in_reasoning=model.config.tools_in_reasoning and form is None,
            form=form,
            margins=reasoning_margins(
                body,
                model,
                self.prompt.text,
                inside=self.starts_in_reasoning,
                constrained=form is not None,
            ),
            trim=reads or form is None,
            merge=is_merged(body, model.config),
            one_call=not rules.parallel,
            named_call=rules.named,
            calls_only=rules.forced,
        )
