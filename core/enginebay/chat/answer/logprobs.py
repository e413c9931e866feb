"""Logprobs on the wire, in the forms of OpenAI's two APIs and of vLLM's `prompt_logprobs`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from math import inf
from uuid import uuid4

from pydantic_core import to_json

from enginebay.chat.schemas.chat_answer import ChatLogprobs, TopLogprob
from enginebay.chat.schemas.chat_answer import TokenLogprob as ChatToken
from enginebay.chat.schemas.completion_bodies import CompletionLogprobs
from enginebay.chat.schemas.usage_bodies import PromptLogprob, PromptLogprobs
from enginebay.contract.types import TokenLogprob, added_bytes
from enginebay.contract.types import TopLogprob as Candidate

LOWEST = -9999.0  # stands for what JSON cannot say: minus infinity, and no number at all


def finite(logprob: float) -> float:
    """`logprob`, or a finite number that JSON can represent."""
    return float(logprob) if LOWEST < logprob < inf else LOWEST


@dataclass(slots=True)  # one a token
class TextToken:
    """A token of a text, where in it the token begins, and its entry; a prompt's first has none."""

    token_id: int
    text: str
    offset: int
    entry: TokenLogprob | None


Token = str | tuple[int | None, str, bytes | None]
"""What is written of a token: its text, or its id if tokens are written as ids, text and bytes."""

_Pieces = tuple[bytes, bytes, bytes, bytes]


class TokenPieces(dict[Token, _Pieces]):
    """The JSON of tokens in the logprobs of chats, without the numbers, made of each token once.

    Of the four pieces of a token, a candidate is written as the first, its logprob, the second; a
    token of the answer as the first, its logprob, the third, its candidates, the fourth. The first
    begins with a comma. The table is for all models of a server. It is emptied when it has `limit`
    tokens; texts of more than `longest` characters are not kept.
    """

    def __init__(self, limit: int = 30_000, longest: int = 60) -> None:
        self._limit = limit
        self._longest = longest

    def __missing__(self, token: Token) -> _Pieces:
        token_id, text, own_bytes = (None, token, None) if isinstance(token, str) else token
        name = text if token_id is None else _id_name(token_id)
        mark = uuid4().hex
        candidate = _candidate(name, added_bytes(text, own_bytes), 0.0)
        before, behind = _around(mark, {**candidate, "logprob": mark})
        _, between, end = _around(
            mark, {**_chosen(candidate, []), "logprob": mark, "top_logprobs": mark}
        )
        pieces = b"," + before, behind, between + b"[", b"]" + end
        if len(self) >= self._limit:
            self.clear()
        if len(text) <= self._longest:
            self[token] = pieces
        return pieces


@dataclass(frozen=True, slots=True)
class LogprobForm:
    """How tokens are written: as text, or, if `as_ids`, as `token_id:<number>`."""

    as_ids: bool = False
    pieces: TokenPieces = field(default_factory=TokenPieces, repr=False)

    def name(self, token_id: int, text: str) -> str:
        """One token on the wire."""
        return _id_name(token_id) if self.as_ids else text

    def chat(self, logprobs: Iterable[TokenLogprob]) -> ChatLogprobs:
        """Of a message's content."""
        return ChatLogprobs(
            content=[
                _chosen(
                    self._candidate(entry),
                    [self._candidate(top) for top in entry.top],
                )
                for entry in logprobs
            ]
        )

    def chat_json(self, logprobs: Sequence[TokenLogprob]) -> bytes:
        """The JSON of the `content` of `chat`, from pieces."""
        values: list[float] = []
        for entry in logprobs:
            values.append(entry.logprob)
            values += [top.logprob for top in entry.top]
        numbers = iter(to_json(list(map(finite, values)))[1:-1].split(b","))
        pieces, key = self.pieces, self._key
        json: list[bytes] = []
        for entry in logprobs:
            before, _, between, end = pieces[key(entry)]
            json += (before, next(numbers), between)
            tops: list[bytes] = []
            for top in entry.top:
                before, behind, _, _ = pieces[key(top)]
                tops += (before, next(numbers), behind)
            json += (b"".join(tops)[1:], end)
        return b"[" + b"".join(json)[1:] + b"]"

    def text(self, tokens: Sequence[TextToken]) -> CompletionLogprobs:
        """Of a text."""
        entries = [token.entry for token in tokens]
        return CompletionLogprobs(
            tokens=[self.name(token.token_id, token.text) for token in tokens],
            token_logprobs=[entry if entry is None else finite(entry.logprob) for entry in entries],
            top_logprobs=[
                entry
                if entry is None
                else {self.name(top.token_id, top.token): finite(top.logprob) for top in entry.top}
                for entry in entries
            ],
            text_offset=[token.offset for token in tokens],
        )

    def prompt(self, logprobs: Sequence[TokenLogprob | None]) -> PromptLogprobs:
        """Of a prompt: every token's own entry first, then the likeliest ones."""
        return [None if entry is None else self._candidates(entry) for entry in logprobs]

    def _key(self, entry: TokenLogprob | Candidate) -> Token:
        if self.as_ids:
            return entry.token_id, entry.token, entry.text_bytes
        if entry.text_bytes is None:
            return entry.token
        return None, entry.token, entry.text_bytes

    def _candidate(self, entry: TokenLogprob | Candidate) -> TopLogprob:
        name = self.name(entry.token_id, entry.token)
        return _candidate(name, entry.added_bytes, finite(entry.logprob))

    def _candidates(self, entry: TokenLogprob) -> dict[int, PromptLogprob]:
        ranks = {top.token_id: rank for rank, top in enumerate(entry.top, 1)}
        found = {
            entry.token_id: PromptLogprob(
                logprob=finite(entry.logprob),
                rank=ranks.get(entry.token_id, entry.rank),
                decoded_token=self.name(entry.token_id, entry.token),
            )
        }
        for top in entry.top:
            found.setdefault(
                top.token_id,
                PromptLogprob(
                    logprob=finite(top.logprob),
                    rank=ranks[top.token_id],
                    decoded_token=self.name(top.token_id, top.token),
                ),
            )
        return found


class SplicedLogprobs:
    """Logprobs that are put into a body's JSON instead of the body, since that is faster.

    In the body a placeholder stands for each list of them; the lists go into the JSON in the order
    in which they were asked for.
    """

    def __init__(self, form: LogprobForm) -> None:
        self._form = form
        self._mark = _chosen(_candidate(uuid4().hex, b"", 0.0), [])
        self._lists: list[bytes] = []

    def chat(self, logprobs: Sequence[TokenLogprob]) -> ChatLogprobs:
        """The placeholder of those of a message's content."""
        self._lists.append(self._form.chat_json(logprobs))
        return ChatLogprobs(content=[self._mark])

    def put_into(self, json: bytes) -> bytes:
        """The body's JSON, with the lists in place of their placeholders."""
        pieces = json.split(to_json([self._mark]))
        return b"".join(chain.from_iterable(zip_longest(pieces, self._lists, fillvalue=b"")))


def _around(mark: str, value: Mapping[str, object]) -> list[bytes]:
    return to_json(value).split(to_json(mark))


def _id_name(token_id: int) -> str:
    return f"token_id:{token_id}"


def _candidate(name: str, own_bytes: bytes, logprob: float) -> TopLogprob:
    return TopLogprob(token=name, logprob=logprob, bytes=list(own_bytes))


def _chosen(candidate: TopLogprob, top_logprobs: list[TopLogprob]) -> ChatToken:
    return ChatToken(**candidate, top_logprobs=top_logprobs)
