"""Events of the remote server's `/v1/chat/completions` as deltas."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from enginebay import (
    BackendUnavailableError,
    ContentDelta,
    Delta,
    GenerationRequest,
    Modality,
    Part,
    ReasoningDelta,
    RefusalDelta,
    TokenCounts,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
)
from enginebay_remote.characters import Characters, whole

Json = Mapping[str, Any]

_KINDS: tuple[Modality, ...] = get_args(Modality)
_REASONS: Mapping[str, Literal["stop", "length", "content_filter"]] = {
    "stop": "stop",
    "tool_calls": "stop",  # which Enginebay tells from the calls themselves
    "function_call": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
}


def says_something(event: Json, request: GenerationRequest) -> bool:
    """Whether an event is more than the opening of an answer. One that cannot be read is an error,
    as of the reader.
    """
    if not all(isinstance(choice.get("index", 0), int) for choice in event.get("choices") or ()):
        raise TypeError("a choice has no number")
    reader = ChatReader(request)
    return bool([*reader.deltas(event)]) or len(reader.unfinished) < request.n


class ChatReader:
    """Reads the answer to one request; its choices are numbered from `first`.

    The last delta waits for the usage, which comes after it. If events before have usage, it is
    told once, when the last choice begins: what is known of an answer that is cut off. `so_far`:
    what answers to the same request have used before this one.
    """

    def __init__(
        self, request: GenerationRequest, *, first: int = 0, so_far: TokenCounts | None = None
    ) -> None:
        self._sampling = request.sampling
        self._first = first
        self._so_far = so_far
        self._calls = [_Calls() for _ in range(request.n)]
        self._last: Delta | None = None
        self._characters = Characters()
        self._told: Json = {}
        self._early = request.n - 1  # by `check_backend` no choice before it has any but the end's
        self.unfinished = set(range(request.n))

    def deltas(self, event: Json) -> Iterator[Delta]:
        """What each choice of an event gained."""
        if isinstance(usage := event.get("usage"), dict) and usage:
            self._told = usage
        for choice in event.get("choices") or ():
            if choice.get("index", 0) in self.unfinished:
                yield from self._with_usage(self._deltas(choice))

    def _with_usage(self, deltas: Iterator[Delta]) -> Iterator[Delta]:
        for delta in deltas:
            if self._told and delta.index == self._first + self._early:
                self._early = -1
                yield replace(delta, usage=self.usage)
            else:
                yield delta

    @property
    def usage(self) -> TokenCounts | None:
        """What the request has used, as far as that has been told."""
        return _added(_counts(self._told), self._so_far) if self._told else self._so_far

    def finish(self) -> Iterator[Delta]:
        """The last delta, with the usage."""
        if self.unfinished:
            raise BackendUnavailableError(
                f"the remote server ended without choices {sorted(self.unfinished)}"
            )
        if self._last:
            yield replace(self._last, usage=self.usage)

    def _deltas(self, choice: Json) -> Iterator[Delta]:
        index = choice.get("index", 0)
        said = self._parts(index, choice.get("delta") or {})
        parts = tuple(part for each in said if (part := self._in_characters(index, each)))
        logprobs = _logprobs(choice, self._sampling.logprobs)
        if any(not isinstance(part, ContentDelta) for part in parts):
            logprobs = ()  # some are of thought or a call, and nobody says which
        if parts or logprobs:
            yield Delta(index=self._first + index, parts=parts, logprobs=logprobs or None)
        if reason := choice.get("finish_reason"):
            yield from self._end(index, reason, choice)

    def _in_characters(self, index: int, part: Part) -> Part | None:
        """A part in whole characters; None if it has none."""
        if isinstance(part, ToolCallDelta):
            arguments = self._characters.of((index, part.index), part.arguments)
            return replace(part, name=part.name and whole(part.name), arguments=arguments)
        text = self._characters.of((index, type(part)), part.text)
        return replace(part, text=text) if text else None

    def _end(self, index: int, reason: str, choice: Json) -> Iterator[Delta]:
        if reason not in _REASONS:
            raise BackendUnavailableError(f"the remote server ended the answer with {reason!r}")
        self._calls[index].finish()
        self.unfinished.remove(index)
        ended = Delta(
            index=self._first + index,
            finish_reason=_REASONS[reason],
            stop_reason=self._stop_reason(choice),
        )
        if self.unfinished:
            yield ended
        else:
            self._last = ended

    def _stop_reason(self, choice: Json) -> str | int | None:
        reason = choice.get("stop_reason", choice.get("matched_stop"))  # vLLM's name and SGLang's
        if isinstance(reason, str):
            return reason
        # SGLang names the end-of-sequence token, too.
        return next((id for id in self._sampling.stop_token_ids if id == reason), None)

    def _parts(self, index: int, delta: Json) -> Iterator[Part]:
        thought = delta.get("reasoning_content") or delta.get("reasoning")  # the same, under both
        if isinstance(thought, str) and thought:
            yield ReasoningDelta(thought)
        yield from _content(delta.get("content"))
        if refusal := delta.get("refusal"):
            yield RefusalDelta(str(refusal))
        pieces = delta.get("tool_calls") or ()
        if not pieces and (old := delta.get("function_call")):
            pieces = [{"index": 0, "function": old}]
        yield from self._calls[index].parts(pieces)


@dataclass(slots=True)
class _Call:
    """A call: its number once it has a name, and arguments that came before that."""

    id: str
    number: int | None = None
    held: str = ""


class _Calls:
    """Puts the pieces of one choice's calls in order.

    Servers give calls an index, or an id, or neither, and send arguments in pieces, at once or as
    an object. A piece with a new id and a name begins a call, whatever its index.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._places: dict[int, _Call] = {}

    def parts(self, pieces: Sequence[Json]) -> Iterator[ToolCallDelta]:
        """The pieces as parts of calls that are numbered from 0."""
        for piece in pieces:
            function = piece.get("function") or {}
            name, arguments = str(function.get("name") or ""), function.get("arguments")
            if arguments is not None and not isinstance(arguments, str):
                arguments = json.dumps(arguments, ensure_ascii=False)
            call = self._call(piece.get("index"), str(piece.get("id") or ""), name)
            arguments = call.held + (arguments or "")
            if call.number is not None:
                if arguments:
                    yield ToolCallDelta(call.number, None, arguments)
            elif name:
                call.number, call.held = sum(c.number is not None for c in self._calls), ""
                yield ToolCallDelta(call.number, name, arguments, call.id or None)
            else:
                call.held = arguments

    def finish(self) -> None:
        """Raise if there is a call that never got a name."""
        if any(call.number is None for call in self._calls):
            raise BackendUnavailableError("the remote server calls a function without a name")

    def _call(self, index: int | None, id: str, name: str) -> _Call:
        known = self._places.get(index) if index is not None else self._of(id, name)
        begins = known is not None and id and name and known.id and known.id != id
        if known is None or begins:
            known = _Call(id)
            self._calls.append(known)
            if index is not None:
                self._places[index] = known
        known.id = known.id or id
        return known

    def _of(self, id: str, name: str) -> _Call | None:
        """The call of a piece without an index."""
        if id:
            return next((call for call in self._calls if call.id == id), None)
        return self._calls[-1] if self._calls and not name else None


def _content(content: Any) -> Iterator[Part]:
    """A text, or Mistral's list of chunks, some of which are thought."""
    if isinstance(content, str):
        yield from [ContentDelta(content)] if content else []
        return
    for chunk in content or ():
        text = chunk.get("thinking") if chunk.get("type") == "thinking" else chunk.get("text")
        if isinstance(text, list):
            text = "".join(each.get("text") or "" for each in text)
        if text:
            yield ReasoningDelta(text) if chunk.get("type") == "thinking" else ContentDelta(text)


def _logprobs(choice: Json, asked: int | None) -> tuple[TokenLogprob, ...]:
    entries = (choice.get("logprobs") or {}).get("content") or ()
    if asked is None:
        return ()
    return tuple(
        TokenLogprob(
            -1,
            whole(str(entry["token"])),
            float(entry["logprob"]),
            tuple(
                TopLogprob(-1, whole(str(top["token"])), float(top["logprob"]))
                for top in (entry.get("top_logprobs") or ())[:asked]
            ),
        )
        for entry in entries
    )


def _counts(usage: Json) -> TokenCounts:
    """Usage in OpenAI's form; DeepSeek and SGLang have names of their own for parts of it.

    xAI and Gemini count reasoning in the total, and not in the completion that it is part of.
    """
    prompt = usage.get("prompt_tokens_details") or {}
    completion = usage.get("completion_tokens_details") or {}
    cached = prompt.get("cached_tokens") or usage.get("prompt_cache_hit_tokens")
    reasoning = completion.get("reasoning_tokens", usage.get("reasoning_tokens"))
    prompt_tokens = _count(usage.get("prompt_tokens"))
    media = {kind: _count(prompt.get(f"{kind}_tokens")) for kind in _KINDS}
    completion_tokens = _count(usage.get("completion_tokens"))
    if prompt_tokens:
        total_tokens = _count(usage.get("total_tokens"))
        completion_tokens = max(completion_tokens, total_tokens - prompt_tokens)
    return TokenCounts(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=min(_count(cached), prompt_tokens),
        reasoning_tokens=None if reasoning is None else min(_count(reasoning), completion_tokens),
        media_tokens={kind: count for kind, count in media.items() if count},
    )


def _count(value: Any) -> int:
    """A number of tokens; 0 for what is none."""
    return int(value) if isinstance(value, int | float) and 0 < value < 2**53 else 0


def _added(counts: TokenCounts, before: TokenCounts | None) -> TokenCounts:
    """The usage of one request that was sent several times: the prompt once."""
    if before is None:
        return counts
    reasoning = (counts.reasoning_tokens, before.reasoning_tokens)
    return TokenCounts(
        prompt_tokens=before.prompt_tokens,
        cached_tokens=before.cached_tokens,
        media_tokens=before.media_tokens,
        completion_tokens=before.completion_tokens + counts.completion_tokens,
        reasoning_tokens=None if None in reasoning else sum(filter(None, reasoning)),
    )
