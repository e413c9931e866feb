"""What is found out about a server's model, and whether another server has the same."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from enginebay import Modality
from enginebay_remote.http import Http
from enginebay_remote.options import Server
from enginebay_remote.reading import Source
from enginebay_remote.tokens import Known


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A model as one server has it.

    `model`: its name there. `context_length`: 0 if the server does not say. `honours`: the params
    that have an effect. `modalities`, `template`: for chats, what messages may have, and the
    server's chat template if it shows it. `source`, `known`, `sample`: for completions, where token
    ids come from, what is known of the tokenizer, and the tokens of a text. `slots`: how many
    choices the server computes at once, if it says.
    """

    model: str
    server: Server
    context_length: int
    honours: frozenset[str]
    modalities: frozenset[Modality] = frozenset()
    template: str | None = None
    source: Source = "text"
    known: Known = field(default_factory=Known)
    sample: tuple[int, ...] = ()
    slots: int | None = None

    def differences(self, other: "Facts") -> Iterator[str]:
        """Why requests for this model cannot go to `other`, each as a clause about `other`."""
        if other.model != self.model:
            yield f"its model is {other.model!r}, not {self.model!r}"
        if other.server != self.server:
            yield f"it is taken for a server of the kind {other.server!r}, not {self.server!r}"
        if other.context_length != self.context_length:
            lengths = (other.context_length, self.context_length)
            has, not_ = (str(length or "an unknown number of") for length in lengths)
            yield f"its context has {has} tokens, not {not_}"
        if lacks := self.honours - other.honours:
            yield f"it does not honour {', '.join(sorted(lacks))}"
        if lacks := self.modalities - other.modalities:
            yield f"its messages may not have {', '.join(sorted(lacks))}"
        if other.template != self.template:
            yield "its chat template is another"
        if other.source != self.source:
            yield "it tells token ids in another way"
        if other.sample != self.sample or self._vocabulary() != other._vocabulary():
            yield "its tokenizer is another"

    def _vocabulary(self) -> tuple[Any, ...]:
        known = self.known
        return (known.vocab_size, dict(known.special_tokens), known.end_token_id)


Probe = Callable[[Http, Mapping[str, Any]], Awaitable[Facts]]
"""`await probe(http, card)`: finds out the facts of a model by its entry in `/v1/models`, and may
have the server generate a token. A `ServingError` if the server cannot answer."""
