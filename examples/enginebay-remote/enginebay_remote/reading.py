"""Events of the remote server's `/v1/completions` as deltas."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from enginebay import (
    BackendUnavailableError,
    Delta,
    GenerationRequest,
    SamplingParams,
    TokenLogprob,
    TopLogprob,
)
from enginebay_remote.characters import Characters
from enginebay_remote.tokens import Tokens

Source = Literal["token_ids", "token_id:", "id", "text"]
"""Where token ids of an answer come from.

`token_ids`: a list beside the text (`return_token_ids`), with the tokens that end an answer.
`token_id:`: the names of tokens beside logprobs (`return_tokens_as_token_ids`). `id`: llama.cpp's
form of logprobs. `text`: nowhere; the text is tokenized again, which need not be what was sampled.
"""

_PREFIX = "token_id:"


def source_of(choice: Mapping[str, Any]) -> Source:
    """How a choice tells its token ids."""
    if choice.get("token_ids"):
        return "token_ids"
    logprobs = choice.get("logprobs") or {}
    if any(str(token).startswith(_PREFIX) for token in logprobs.get("tokens") or ()):
        return "token_id:"
    if any("id" in entry for entry in logprobs.get("content") or ()):
        return "id"
    return "text"


def says_something(event: Mapping[str, Any]) -> bool:
    """Whether an event has a choice. One that has none of any use is an error, as of the reader."""
    choices = event.get("choices") or ()
    for choice in choices:
        if not isinstance(choice.get("index", 0), int):
            raise TypeError("a choice has no number")
        if not isinstance(choice.get("text") or "", str):
            raise TypeError("a choice has no text")
    return bool(choices)


class Reader:
    """Reads the answer to one request.

    Its very last delta is held back, since it says how many tokens of the prompt were cached, which
    servers tell after it.
    """

    def __init__(
        self, request: GenerationRequest, tokens: Tokens, source: Source, end_token_id: int | None
    ) -> None:
        self._sampling: SamplingParams = request.sampling
        self._prompt = len(request.prompt_token_ids)
        self._tokens = tokens
        self._source = source
        self._end_token_id = end_token_id
        self._last: dict[int, int] = {}
        self._began = False
        self._cached = 0
        self._held: Delta | None = None
        self._characters = Characters()
        self._unfinished = set(range(request.n))

    async def deltas(self, event: Mapping[str, Any]) -> list[Delta]:
        """What each choice of an event gained."""
        details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens")
        self._cached = cached if isinstance(cached, int) else self._cached
        deltas = []
        for choice in event.get("choices") or ():
            if choice.get("index", 0) in self._unfinished:
                delta = await self._delta(choice)
                if not self._began and (places := choice.get("prompt_logprobs")):
                    entries = [await self._place(place) for place in places]
                    delta = replace(delta, prompt_logprobs=tuple(entries))
                deltas.append(delta)
                self._began = True
        if deltas and not self._unfinished:
            self._held = deltas.pop()
        return deltas

    def last(self) -> Delta:
        """The delta after which there are no more events."""
        if self._held is None:
            raise BackendUnavailableError(
                f"the remote server ended without choices {sorted(self._unfinished)}"
            )
        cached = max(0, min(self._cached, self._prompt))
        return replace(self._held, prefill_tokens=self._prompt - cached, cached_tokens=cached)

    async def _delta(self, choice: Mapping[str, Any]) -> Delta:
        index = choice.get("index", 0)
        text = self._characters.of(index, choice.get("text") or "")
        wants_logprobs = self._sampling.logprobs is not None
        entries: tuple[TokenLogprob, ...] = ()
        if wants_logprobs or self._source not in ("token_ids", "text"):
            entries = tuple([entry async for entry in self._entries(choice.get("logprobs") or {})])
        token_ids = await self._token_ids(choice, text, entries)
        ended, stop_reason = choice.get("finish_reason"), _stop_reason(choice)
        if ended not in (None, "stop", "length"):
            raise BackendUnavailableError(f"the remote server ended the answer with {ended!r}")
        if ended:
            self._unfinished.remove(index)
        if ended == "stop" and not isinstance(stop_reason, str):
            ending = self._ending(index, stop_reason, token_ids)
            if stop_reason not in self._sampling.stop_token_ids:
                stop_reason = None  # SGLang names the end-of-sequence token, too
            if ending is not None and ending != self._latest(index, token_ids):
                token_ids = (*token_ids, ending)
            kept = stop_reason is not None and self._sampling.include_stop_str_in_output
            if entries and entries[-1].token_id == ending and not kept:
                entries = entries[:-1]
        if token_ids:
            self._last[index] = token_ids[-1]
        return Delta(
            index=index,
            text=text,
            token_ids=token_ids,
            logprobs=entries if wants_logprobs else None,
            finish_reason=ended,
            stop_reason=stop_reason if ended == "stop" else None,
        )

    def _ending(self, index: int, stop_reason: int | None, token_ids: Sequence[int]) -> int | None:
        """The token that ended a choice, as far as it is known."""
        if self._source == "token_ids":
            return self._latest(index, token_ids)
        return self._end_token_id if stop_reason is None else stop_reason

    def _latest(self, index: int, token_ids: Sequence[int]) -> int | None:
        return token_ids[-1] if token_ids else self._last.get(index)

    async def _token_ids(
        self, choice: Mapping[str, Any], text: str, entries: Sequence[TokenLogprob]
    ) -> tuple[int, ...]:
        if self._source == "token_ids":
            return tuple(choice.get("token_ids") or ())
        if self._source == "text":
            return tuple(await self._tokens.encode(text, add_special_tokens=False))
        return tuple(entry.token_id for entry in entries)

    async def _entries(self, logprobs: Mapping[str, Any]) -> AsyncIterator[TokenLogprob]:
        for entry in logprobs.get("content") or ():
            yield await self._entry(
                entry["id"],
                entry["logprob"],
                {top["id"]: top["logprob"] for top in entry.get("top_logprobs") or ()},
                self._sampling.logprobs,
            )
        names = logprobs.get("tokens") or ()
        tops = logprobs.get("top_logprobs") or [None] * len(names)
        values = logprobs.get("token_logprobs") or ()
        for name, value, top in zip(names, values, tops, strict=True):
            if _id(name) is not None:
                candidates = {_id(each): logprob for each, logprob in (top or {}).items()}
                asked = self._sampling.logprobs
                yield await self._entry(_id(name) or 0, value or 0.0, candidates, asked)

    async def _place(self, place: Mapping[str, Any] | None) -> TokenLogprob | None:
        """A token of the prompt in vLLM's form: its own entry first, then the likeliest."""
        if place is None:
            return None
        own = next(iter(place))
        ranked = {int(id): each["logprob"] for id, each in place.items() if each["rank"]}
        asked = self._sampling.prompt_logprobs
        return await self._entry(int(own), place[own]["logprob"], ranked, asked)

    async def _entry(
        self,
        token_id: int,
        logprob: float,
        candidates: Mapping[int | None, float] | Mapping[int, float],
        asked: int | None,
    ) -> TokenLogprob:
        best = sorted(candidates.items(), key=lambda each: each[1], reverse=True)
        top = [
            TopLogprob(id, await self._tokens.decode([id]), value)
            for id, value in best[: asked or 0]
            if id is not None
        ]
        return TokenLogprob(token_id, await self._tokens.decode([token_id]), logprob, tuple(top))


def _id(name: str) -> int | None:
    digits = name.removeprefix(_PREFIX)
    return int(digits) if digits != name and digits.isdecimal() else None


def _stop_reason(choice: Mapping[str, Any]) -> str | int | None:
    reason = choice.get("stop_reason", choice.get("matched_stop"))  # vLLM's name and SGLang's
    return reason if isinstance(reason, str | int) else None
