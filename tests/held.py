"""A backend that says a letter and then waits for the test, without a thread or a clock."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from enginebay import Backend, Delta, GenerationRequest, ModelInfo
from enginebay.chat.answer.running import RunningRequest
from enginebay.server.access.key_store import KeyStore
from tests.support import Server, plugins_with, scripted_config, serve


class OfCharacters(Backend):
    """A backend without a model, in which one token is one character."""

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))

    async def close(self) -> None:
        pass


class Held(OfCharacters):
    """Each choice says "a", and ends when the test lets its prompt go on.

    A prompt with "?" in it is held before the "a", too. One token is one character. `begun` has
    the prompts in the order in which they came, `running` those that have not ended.
    """

    def __init__(self, together: int | None = None) -> None:
        """`together`: how many choices it says that it computes at once."""
        self.begun: list[str] = []
        self.running: list[str] = []
        self._together = together
        self.loop: asyncio.AbstractEventLoop
        self._going: asyncio.Event
        self._free: set[str] = set()

    async def start(self) -> ModelInfo:
        self.loop = asyncio.get_running_loop()
        self._going = asyncio.Event()
        return ModelInfo(
            context_length=4096,
            vocab_size=0x110000,
            longest_token=1,
            chat_template="{{ messages[0].content }}",
            embedding_size=1,
            max_batch_size=self._together,
        )

    def let_go(self, *prompts: str) -> None:
        """Let answers to these prompts end, on the event loop."""
        self._free.update(prompts)
        self._going.set()
        self._going = asyncio.Event()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        prompt = await self.detokenize(request.prompt_token_ids)
        with self._runs(prompt):
            if "?" in prompt:
                await self.until_told(prompt)
            tokens = len(request.prompt_token_ids)
            for index in range(request.n):
                prefilled = 0 if index else tokens
                yield Delta(index=index, text="a", token_ids=(97,), prefill_tokens=prefilled)
            await self.until_told(prompt)
            for index in range(request.n):
                yield Delta(index=index, text="b", token_ids=(98,), finish_reason="stop")

    async def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        prompt = await self.detokenize(prompts[0])
        with self._runs(prompt):
            await self.until_told(prompt)
        return [[1.0]] * len(prompts)

    @contextmanager
    def _runs(self, prompt: str) -> Iterator[None]:
        self.begun.append(prompt)
        self.running.append(prompt)
        try:
            yield
        finally:
            self.running.remove(prompt)

    async def until_told(self, prompt: str) -> None:
        """Return when the test lets this go on."""
        while prompt not in self._free:
            await self._going.wait()


def until(server: Server, condition: Callable[[], object]) -> None:
    """Return when it holds, which is looked at on the server's event loop."""

    async def wait() -> None:
        while not condition():  # noqa: ASYNC110  (nobody tells of every state)
            await asyncio.sleep(0)

    server.run(wait())


class Holding:
    """A server whose model is a `Held`."""

    def __init__(self, server: Server, held: Held) -> None:
        self.server = server
        self.held = held

    def until(self, condition: Callable[[], object]) -> None:
        """Return when it holds, which is looked at on the event loop."""
        until(self.server, condition)

    def let_go(self, *prompts: str) -> None:
        """Let answers to these prompts end."""

        async def go() -> None:
            self.held.let_go(*prompts)

        self.server.run(go())

    def begun(self, *prompts: str) -> None:
        """Wait until exactly these have begun."""
        self.until(lambda: sorted(self.held.begun) == sorted(prompts))

    @property
    def requests(self) -> list[RunningRequest]:
        """Those that are being answered."""
        requests = self.server.app.state.services.serving.requests
        return [request for request in requests if request.asks]

    @property
    def gate(self) -> Any:
        """The gate of the model."""
        return self.server.app.state.services.models.all()[0].served().gate

    def queued(self, count: int) -> None:
        """Wait until so many requests wait for their turn."""
        self.until(lambda: self.gate.waiting == count)

    def nothing_is_left(self) -> None:
        """Wait until every trace of requests is gone."""
        gate = self.gate
        self.until(lambda: not (self.requests or self.held.running or gate.running or gate.waiting))
        assert gate._shares == {}
        assert self.server.http.get("/v1/requests").json() == {"object": "list", "data": []}


@contextmanager
def holding(
    together: int | None = None,
    *,
    keys: KeyStore | None = None,
    likes: Sequence[str] = (),
    **model: Any,
) -> Iterator[Holding]:
    """A server with a `Held`, and this in the config of its model; `likes` are like that."""
    held = Held(together)
    plugins = plugins_with(scripted=lambda _: held)
    config = scripted_config(**model)
    config.models += [
        config.models[0].model_copy(update={"name": name, "like": "scripted"}) for name in likes
    ]
    with serve(config, plugins, keys=keys) as server:
        yield Holding(server, held)
