"""How the thought of an answer is ended by force."""

from dataclasses import dataclass

from enginebay.contract.backend import Backend
from enginebay.contract.sampling_params import ReasoningBudget


@dataclass(frozen=True, slots=True)
class ThoughtEnd:
    """Between which texts an answer thinks, and the text that closes its thought.

    `starts_inside`: it begins with thought.
    """

    start: str
    end: str
    close: str
    starts_inside: bool

    async def budget(self, backend: Backend, tokens: int) -> ReasoningBudget:
        """A budget of so many tokens, for the engine."""
        closing = await backend.tokenize(self.close, add_special_tokens=False)
        return ReasoningBudget(
            tokens=tokens,
            start=self.start,
            end=self.end,
            close_token_ids=tuple(closing),
            starts_inside=self.starts_inside,
        )
