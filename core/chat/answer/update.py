"""What a choice gained: the input of the composers."""

from dataclasses import dataclass

from core.contract.types import FinishReason, Part, TokenLogprob


@dataclass(slots=True)  # one a token: a frozen one costs four times as much to make
class Update:
    """What choice `index` of the answer gained; its last one has the `finish_reason`.

    `tokens` is how many tokens the choice has by now, `token_ids` are those it gained.
    `prompt_logprobs` come with the first update of a request, if it asks for them.
    """

    index: int
    parts: list[Part]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    tokens: int = 0
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    token_ids: tuple[int, ...] = ()
