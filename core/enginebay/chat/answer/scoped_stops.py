"""Stop strings of engines that cannot limit them to the answer."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from enginebay.contract.sampling_params import SamplingParams
from enginebay.contract.types import Delta, GenerationRequest
from enginebay.engine.stop_strings import StopStrings


def without_scope(request: GenerationRequest) -> GenerationRequest:
    """The request with the stop strings that match everywhere, which are left to the engine."""
    params, scope = request.sampling, request.sampling.stop_scope
    stop = scope.anywhere if scope else params.stop
    return replace(request, sampling=replace(params, stop=stop, stop_scope=None))


async def stopped(
    deltas: AsyncGenerator[Delta, None], params: SamplingParams, choices: int
) -> AsyncGenerator[Delta, None]:
    """The deltas up to the stop strings of these params. A request ends with its last choice."""
    searches = [StopStrings.of(params) for _ in range(choices)]
    tokens = [0] * choices
    running = set(range(choices))
    async with aclosing(deltas):
        async for delta in deltas:
            if delta.prefill:
                yield delta
            if delta.prefill or delta.index not in running:
                continue
            search, text, at, used = searches[delta.index], "", 0, 0
            for length, count in delta.pieces or ((len(delta.text), len(delta.token_ids)),):
                piece = delta.text[at : at + length]
                at, used = at + length, used + count
                counts = tokens[delta.index] + used >= params.min_tokens
                text += search.feed(piece) if counts else search.skip(piece)
                if search.found is not None:
                    break
            tokens[delta.index] += used
            if delta.finish_reason:
                text += search.finish()
            delta = replace(delta, text=text, token_ids=delta.token_ids[:used], pieces=())
            if search.found is not None:
                delta = replace(delta, finish_reason="stop", stop_reason=search.found)
            yield delta
            if delta.finish_reason:
                running.remove(delta.index)
                if not running:
                    return
