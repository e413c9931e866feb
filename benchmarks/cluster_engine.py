"""An engine without a model that keeps time as the simulated ones do, the backend `paced`.

The rules of `cluster_simulation_engines`: requests wait in the order in which they came, up to
`batch` run; each gets one token a step; the prompt tokens of new ones that no cached block has
are computed in their first step, which takes longer for them; what was used longest ago leaves the
cache. A token is a character, and answers are `baba…`: one that is lost or doubled shows.
"""

import json
import os
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from functools import partial

from pydantic import BaseModel

from enginebay import (
    BackendRegister,
    BackendSettings,
    Delta,
    Engine,
    EngineBackend,
    EngineStats,
    GenerationRequest,
    ModelInfo,
    SamplingParams,
    block_hashes,
    hookimpl,
)

BLOCK = 32
_HEAD = 60
"""Characters of a prompt that are written down with it."""
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"


class Options(BaseModel, extra="forbid"):
    """`step`: seconds of one, whatever runs; `prefill_token`: more for each that is not cached.

    `batch`: choices at once. `cache`: tokens. `stamped`: a token's text is the time at which it was
    made. `log`: a file for one line of JSON an event.
    """

    step: float = 0.02
    prefill_token: float = 0.0
    batch: int = 8
    cache: int = 60_000
    stamped: bool = False
    log: str | None = None


class Answer:
    """One request; `known` are the tokens of its prompt and what was said."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.known = list(request.prompt_token_ids)
        self.left = request.sampling.max_tokens or 20
        self.said = 0
        self.cached = 0


class Cache:
    """Hashes of the last used blocks."""

    def __init__(self, tokens: int) -> None:
        self._size = tokens // BLOCK
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def matched(self, blocks: Sequence[int]) -> int:
        for number, block in enumerate(blocks):
            if block not in self._blocks:
                return number
        return len(blocks)

    def keep(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._size:
            self._blocks.popitem(last=False)


class Paced(Engine):
    """Steps are due one after the other; one that was late is not made up for."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._waiting: deque[Answer] = deque()
        self._running: dict[str, Answer] = {}
        self._cache = Cache(options.cache)
        self._queries = self._hits = 0
        self._due = 0.0
        self.info = ModelInfo(
            context_length=1_000_000,
            vocab_size=0x110000,
            longest_token=1,
            chat_template=TEMPLATE,
            max_batch_size=options.batch,
            unsupported=frozenset(SamplingParams.__dataclass_fields__) - {"max_tokens"},
        )
        self._log("start")

    def add_request(self, request: GenerationRequest) -> None:
        self._waiting.append(Answer(request))
        prompt = request.prompt_token_ids
        self._log("add", request, prompt=len(prompt), head="".join(map(chr, prompt[:_HEAD])))

    def step(self) -> Iterable[tuple[str, Delta]]:
        """One token of each choice; it begins when the last was due, or now after a pause."""
        now = time.monotonic()
        if not self._running:
            self._due = now
        lacking = self._admit()
        length = self._options.step + self._options.prefill_token * lacking
        self._due = max(self._due + length, now)
        time.sleep(max(0.0, self._due - now))
        for id, answer in list(self._running.items()):
            yield from ((id, delta) for delta in self._next(answer))
            if not answer.left:
                del self._running[id]
                self._cache.keep(block_hashes(answer.known, BLOCK))
                self._log("end", answer.request, said=answer.said)

    def _admit(self) -> int:
        """Let in what there is room for; the prompt tokens that are to be computed."""
        free = self._options.batch - sum(each.request.n for each in self._running.values())
        lacking = 0
        while self._waiting and (free >= self._waiting[0].request.n or not self._running):
            answer = self._waiting.popleft()
            blocks, prompt = block_hashes(answer.known, BLOCK), len(answer.known)
            answer.cached = min(self._cache.matched(blocks), (prompt - 1) // BLOCK) * BLOCK
            self._cache.keep(blocks)
            self._queries += prompt
            self._hits += answer.cached
            self._running[answer.request.request_id] = answer
            free -= answer.request.n
            lacking += prompt - answer.cached
        return lacking

    def _next(self, answer: Answer) -> Iterable[Delta]:
        answer.said += 1
        answer.left -= 1
        letter = "ab"[answer.said % 2]
        answer.known.append(ord(letter))
        text = f"{time.time():.6f} " if self._options.stamped else letter
        for index in range(answer.request.n):
            counts = answer.said == 1 and index == 0
            yield Delta(
                index=index,
                text=text,
                token_ids=(ord(letter),),
                finish_reason=None if answer.left else "length",
                prefill_tokens=len(answer.known) - 1 - answer.cached if counts else 0,
                cached_tokens=answer.cached if counts else 0,
            )

    def abort_request(self, request_id: str) -> None:
        answer = self._running.pop(request_id, None)
        for each in self._waiting:
            if each.request.request_id == request_id:
                answer = each
        if answer:
            self._waiting = deque(each for each in self._waiting if each is not answer)
            self._log("abort", answer.request, said=answer.said)

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))

    def stats(self) -> EngineStats:
        return EngineStats(
            running=sum(each.request.n for each in self._running.values()),
            waiting=sum(each.request.n for each in self._waiting),
            kv_used=sum(len(each.known) for each in self._running.values()),
            kv_total=self._options.cache,
            cache_queries=self._queries,
            cache_hits=self._hits,
        )

    def _log(self, event: str, request: GenerationRequest | None = None, **more: object) -> None:
        if self._options.log:
            line = {"event": event, "pid": os.getpid(), "time": time.time(), **more}
            if request:
                line |= {"id": request.request_id, "n": request.n}
            with open(self._options.log, "a", encoding="utf-8") as file:  # noqa: PTH123
                file.write(json.dumps(line) + "\n")


def create(settings: BackendSettings) -> EngineBackend:
    """On a thread, unless the config says `process`."""
    options: Options = settings.options or Options()
    return EngineBackend(partial(Paced, options), isolation=settings.isolation or "thread")


@hookimpl
def register_backends(register: BackendRegister) -> None:
    """Make `backend: paced` valid."""
    register("paced", create, Options)
