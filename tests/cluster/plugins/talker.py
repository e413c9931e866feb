"""An engine for tests of clusters: a token is a character, a step takes a while.

It says `abab…`, so that a character that is lost or doubled shows, caches prompts, and writes what
happens to a file.
"""

import json
import os
import socket
import time
from collections.abc import Iterable, Sequence
from itertools import takewhile

from pydantic import BaseModel

from enginebay import (
    BackendRegister,
    BackendSettings,
    Delta,
    Engine,
    EngineBackend,
    EngineStats,
    GenerationRequest,
    InvalidRequestError,
    Lora,
    ModelInfo,
    SamplingParams,
    hookimpl,
)

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"


class Options(BaseModel, extra="forbid"):
    """`step`: seconds of one; `prefill`: seconds before the first token; `batch`: choices at once.

    `prefill_token`: seconds that each prompt token takes that is not cached, within steps. `log`: a
    file, one line of JSON an event.
    """

    step: float = 0.01
    prefill: float = 0.0
    prefill_token: float = 0.0
    batch: int = 8
    cache: int = 100_000
    context: int = 100_000
    embeds: bool = False
    log: str | None = None


class Running:
    def __init__(self, request: GenerationRequest, cached: int, begins: float) -> None:
        self.request = request
        self.cached = cached
        self.begins = begins
        self.left = request.n
        self.said = 0


class Talker(Engine):
    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.options = options
        self.running: dict[str, Running] = {}
        self.waiting: list[Running] = []
        self.seen: list[tuple[int, ...]] = []
        self.adapters: dict[str, Sequence[Lora]] = {}
        self.queries = self.hits = 0
        self.info = ModelInfo(
            context_length=options.context,
            vocab_size=0x110000,
            longest_token=1,
            chat_template=TEMPLATE,
            max_batch_size=options.batch,
            embedding_size=4 if options.embeds else None,
            reranks=options.embeds,
            unsupported=frozenset(SamplingParams.__dataclass_fields__) - {"max_tokens"},
        )
        self.log("start", step=options.step)

    def log(self, event: str, **more: object) -> None:
        if self.options.log:
            line = {
                "event": event,
                "model": self.name,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "time": time.time(),
                **more,
            }
            with open(self.options.log, "a", encoding="utf-8") as file:  # noqa: PTH123
                file.write(json.dumps(line) + "\n")

    def add_request(self, request: GenerationRequest) -> None:
        if request.adapter and request.adapter not in self.adapters:
            raise InvalidRequestError(f"no adapter {request.adapter}")
        prompt = request.prompt_token_ids
        cached = max((alike(prompt, each) for each in self.seen), default=0)
        cached = min(cached, len(prompt) - 1)
        self.keep(prompt)
        self.queries += len(prompt)
        self.hits += cached
        begins = time.monotonic() + self.options.prefill
        self.running[request.request_id] = Running(request, cached, begins)
        self.log("add", id=request.request_id, running=self.choices(), prompt=len(prompt))

    def keep(self, prompt: tuple[int, ...]) -> None:
        self.seen.append(prompt)
        while sum(map(len, self.seen)) > self.options.cache and len(self.seen) > 1:
            self.seen.pop(0)

    def choices(self) -> int:
        return sum(each.request.n for each in self.running.values())

    def step(self) -> Iterable[tuple[str, Delta]]:
        new = [r for r in self.running.values() if not r.said]
        lacking = sum(len(r.request.prompt_token_ids) - r.cached for r in new)
        time.sleep(self.options.step + self.options.prefill_token * lacking)
        for id, running in list(self.running.items()):
            if time.monotonic() < running.begins:
                continue
            running.said += 1
            request = running.request
            ended = running.said >= (request.sampling.max_tokens or 20)
            if ended:
                del self.running[id]
                self.log("end", id=id)
            first = running.said == 1
            for index in range(request.n):
                counts = first and index == 0
                yield (
                    id,
                    Delta(
                        index=index,
                        text="ab"[running.said % 2],
                        token_ids=(97,),
                        finish_reason="length" if ended else None,
                        prefill_tokens=len(request.prompt_token_ids) - running.cached
                        if counts
                        else 0,
                        cached_tokens=running.cached if counts else 0,
                    ),
                )

    def abort_request(self, request_id: str) -> None:
        if self.running.pop(request_id, None):
            self.log("abort", id=request_id)

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))

    def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[float(len(prompt)), float(sum(prompt)), 1.0, 0.0] for prompt in prompts]

    def tokenize_pair(self, query: str, document: str) -> list[int]:
        return self.tokenize(f"{query}?{document}", add_special_tokens=False)

    def rerank(self, pairs: Sequence[Sequence[int]]) -> list[float]:
        return [1 / len(pair) for pair in pairs]

    def load_adapter(self, name: str, loras: Sequence[Lora]) -> None:
        self.log("load_adapter", name=name)
        self.adapters[name] = loras

    def unload_adapter(self, name: str) -> None:
        self.adapters.pop(name, None)

    def stats(self) -> EngineStats:
        return EngineStats(
            running=self.choices(),
            waiting=0,
            cache_queries=self.queries,
            cache_hits=self.hits,
        )


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def create(settings: BackendSettings) -> EngineBackend:
    options: Options = settings.options or Options()
    return EngineBackend(lambda: Talker(settings.name, options), isolation="thread")


@hookimpl
def register_backends(register: BackendRegister) -> None:
    register("talker", create, Options)
