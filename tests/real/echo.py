"""An engine that repeats its prompt: any tokens of a real vocabulary, without a model."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from enginebay import Delta, Detokenizer, GenerationRequest, ModelInfo, ServingError
from enginebay.engine.batching.text_engine import TextEngine
from enginebay.engine.completion import Completion
from tests.real.vocabularies import ROWS, Vocabulary


class EchoEngine(TextEngine):
    """One token of each prompt a step, as the text that every engine of the core makes of it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        info = ModelInfo(context_length=4096, vocab_size=ROWS[vocabulary.name])
        super().__init__(vocabulary.ours, info, eos_token_ids=frozenset(), compiler=None)
        self._running: dict[str, tuple[Iterator[int], Completion]] = {}

    def add_request(self, request: GenerationRequest) -> None:
        prompt = request.prompt_token_ids
        limited = replace(request, sampling=replace(request.sampling, max_tokens=len(prompt)))
        completion = self._new_completion(limited, 0, Detokenizer(self._tokenizer.decode))
        self._running[request.request_id] = iter(prompt), completion

    def step(self) -> Iterable[tuple[str, Delta | ServingError]]:
        for id, (token_ids, completion) in list(self._running.items()):
            delta = completion.append(next(token_ids))
            if delta.finish_reason:
                del self._running[id]
            yield id, delta

    def abort_request(self, request_id: str) -> None:
        self._running.pop(request_id, None)
