"""`check_backend()`: checks that a backend keeps the promises of the contract.

The promises, numbered as in `docs/internals/engines.md`:

1. deltas of one choice in order; exactly one, its last, has a `finish_reason`
2. `text` is whole characters and joins to the decoded completion, without stop strings and
   end-of-sequence tokens
3. closing the iterator aborts within a step; aborting an unknown id is not an error
4. one prefill per request, whatever `n` is
5. a request that is refused fails alone
6. a dead (or closed) backend answers everything in flight and later with `EngineDeadError`
7. a sampling param has its effect, or is named in `ModelInfo.unsupported`
8. an embedding has the size that `ModelInfo` says, a pair to rerank has a finite score, a text to
   classify a finite number for each label, and none depends on what is asked beside it
9. a backend whose `ModelInfo.constraints` is true enforces them; what it cannot is refused,
   what is cut short says so
10. `ping` returns; `stats` add up, and nothing runs or waits in them when all work is done
11. media have spans where they stand in the prompt, and say greedily the same alone and beside
    others; what cannot be read is refused, by its number; what another item left in the prefix
    cache is not used

Of a model that chats (`ModelInfo.chats`) the same hold, with these in their place:

2. deltas have parts, and neither text nor tokens; calls are numbered from 0, and the first piece of
   each has its name, the others none
4. the reported `usage` has the prompt once and the tokens of all choices
7. a field of `Chat` has its effect, too, or is named in `unsupported`; of sampling params only
   those are tried that show without tokens
9. content matches a `response_format`, if that is not in `unsupported`
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from itertools import chain
from math import isfinite
from typing import cast

from enginebay.contract.backend import Backend
from enginebay.contract.engine import Engine
from enginebay.contract.errors import EngineDeadError, ServingError
from enginebay.engine.backend import EngineBackend
from enginebay.testing.chats import check_form, check_parts, check_usage
from enginebay.testing.constraints import check_constraints
from enginebay.testing.media import check_media
from enginebay.testing.params import check_params
from enginebay.testing.probe import GREEDY, BrokenPromiseError, Probe, WatchedEngine, expect

Check = Callable[[Probe], Awaitable[None]]


async def check_backend(
    create: Callable[[], Backend | Engine],
    *,
    prompt: str = "Hello, how are you?",
    max_tokens: int = 12,
    timeout: float = 120,  # noqa: ASYNC109  (of one check, not of the whole)
) -> None:
    """Raise `BrokenPromiseError` naming every promise that is broken.

    `create` makes a backend, or an engine, which is then run in an `EngineBackend` and watched
    more closely. A check that takes longer than `timeout` seconds counts as a hang. The model
    should have more than `max_tokens` tokens to say to `prompt`.
    """
    made = create()
    watched = WatchedEngine(made) if isinstance(made, Engine) else None
    backend = EngineBackend(lambda: cast(Engine, watched)) if watched else made
    assert isinstance(backend, Backend)
    info = await backend.start()
    probe = Probe(backend, info, watched, prompt, max_tokens)
    broken: list[str] = []
    try:
        for promise, check in _CHECKS:
            if not info.generates and check not in _CHECKS_WITHOUT_TEXT:
                continue
            try:
                async with asyncio.timeout(timeout):
                    await check(probe)
            except BrokenPromiseError as error:
                broken.append(str(error))
            except TimeoutError:
                broken.append(f"promise {promise}: {check.__name__} hangs")
            except Exception as error:
                broken.append(f"promise {promise}: {type(error).__name__}: {error}")
    finally:
        await backend.close()
    if broken:
        raise BrokenPromiseError("\n".join(broken))


async def check_order(probe: Probe) -> None:
    """Promise 1, with one choice and with three."""
    for n in (1, 3):
        for choice in await probe.run(await probe.request(n=n)):
            reasons = [delta.finish_reason for delta in choice.deltas if delta.finish_reason]
            expect(len(reasons) == 1, 1, f"{len(reasons)} finish reasons in a choice of n={n}")
            expect(choice.last.finish_reason is not None, 1, "a delta came after the finish")
        if probe.watched:
            unknown = sorted(probe.watched.spoke_to_nobody)
            expect(not unknown, 1, f"deltas of choices that have finished or never were: {unknown}")


async def check_text(probe: Probe) -> None:
    """Promise 2, against `detokenize`; of a chat, by its parts."""
    if probe.info.chats:
        return await check_parts(probe)
    choice = await probe.generate()
    token_ids = choice.token_ids
    if choice.last.finish_reason == "stop":
        token_ids = token_ids[:-1]  # the end-of-sequence token
    decoded = await probe.backend.detokenize(token_ids)
    expect(choice.text == decoded, 2, f"text {choice.text!r} is not the decoded {decoded!r}")
    expect(bool(decoded), 2, "the model generated nothing; use another prompt")


async def check_stop_strings(probe: Probe) -> None:
    """Promises 2 and 7: stop strings, wherever they begin inside a token."""
    if not probe.supports("stop"):
        return
    whole = (await probe.generate()).text
    for start in range(1, min(len(whole) - 1, 12)):
        stop = whole[start : start + 3]
        choice = await probe.generate(replace(GREEDY, stop=(stop,)))
        expected = whole[: whole.index(stop)]
        expect(choice.text == expected, 2, f"stop {stop!r} gave {choice.text!r}, not {expected!r}")
        expect(choice.last.finish_reason == "stop", 7, f"stop {stop!r} did not end the choice")
        named = (None, stop) if probe.info.chats else (stop,)  # few servers tell
        reason = choice.last.stop_reason
        expect(reason in named, 7, f"stop_reason is {reason!r}")


async def check_abort(probe: Probe) -> None:
    """Promise 3: an aborted request generates nothing more, and frees its slot."""
    endless = replace(
        GREEDY,
        max_tokens=probe.info.context_length or None,
        ignore_eos=probe.supports("ignore_eos"),
    )
    for _ in range(20):
        request = await probe.request(endless)
        async with aclosing(probe.backend.generate(request)) as deltas:
            async for _delta in deltas:
                break
    if probe.watched:
        probe.watched.abort_request("never-heard-of")
    await probe.generate()
    if probe.watched:
        spoke = probe.watched.spoke_after_abort
        expect(not spoke, 3, f"{len(spoke)} of 20 requests went on after their abort")


async def check_prefill(probe: Probe) -> None:
    """Promise 4: the first delta accounts for the prompt, once; of a chat, the reported usage."""
    if probe.info.chats:
        return await check_usage(probe)
    request = await probe.request(n=3)
    choices = await probe.run(request)
    deltas = [delta for choice in choices for delta in choice.deltas]
    accounted = sum(delta.prefill_tokens + delta.cached_tokens for delta in deltas)
    prompt = len(request.prompt_token_ids)
    expect(
        accounted == prompt,
        4,
        f"prefill_tokens and cached_tokens are {accounted} for a prompt of {prompt} with n=3",
    )


async def check_refusal(probe: Probe) -> None:
    """Promise 5: a prompt that does not fit fails, its neighbour does not."""
    if probe.info.chats and not probe.info.context_length:
        return  # then nobody knows what would not fit
    neighbour = asyncio.create_task(probe.generate())
    too_many = probe.info.context_length + 1
    request = await probe.request(prompt="a " * too_many if probe.info.chats else None)
    token_ids = (request.prompt_token_ids * too_many)[:too_many]
    refused = replace(request, prompt_token_ids=token_ids)
    try:
        await probe.run(refused)
    except EngineDeadError:
        expect(False, 5, "a prompt that does not fit killed the engine")
    except ServingError as error:
        expect(error.status < 500, 5, f"a prompt that does not fit is a {type(error).__name__}")
    else:
        expect(False, 5, "a prompt longer than the context was accepted")
    await neighbour


async def check_embeddings(probe: Probe) -> None:
    """Promise 8, for embedding models."""
    if probe.info.embedding_size is None:
        return
    texts = ("one", "another text", "and a third one, which is longer than the others")
    prompts = [await probe.backend.tokenize(text, add_special_tokens=True) for text in texts]
    together = await probe.backend.embed(prompts)
    expect(len(together) == len(prompts), 8, f"{len(together)} embeddings of {len(prompts)} texts")
    sizes = {len(vector) for vector in together}
    expect(sizes == {probe.info.embedding_size}, 8, f"embeddings have {sizes} numbers")
    for prompt, vector in zip(prompts, together, strict=True):
        [alone] = await probe.backend.embed([prompt])
        distance = max(abs(a - b) for a, b in zip(alone, vector, strict=True))
        expect(distance < 1e-3, 8, f"an embedding is {distance:.2g} off in a batch")


async def check_reranking(probe: Probe) -> None:
    """Promise 8, for models that rerank."""
    if not probe.info.reranks:
        return
    documents = ("one", "another text", "and a third one, which is longer than the others")
    pairs = [await probe.backend.tokenize_pair("a text", document) for document in documents]
    expect(
        all(pairs) and len(set(map(tuple, pairs))) == 3, 8, "pairs have the same tokens, or none"
    )
    together = await probe.backend.rerank(pairs)
    expect(len(together) == len(pairs), 8, f"{len(together)} scores of {len(pairs)} pairs")
    expect(all(map(isfinite, together)), 8, f"scores are {together}")
    for pair, score in zip(pairs, together, strict=True):
        [alone] = await probe.backend.rerank([pair])
        expect(abs(alone - score) < 1e-3, 8, f"a score is {alone - score:.2g} off in a batch")


async def check_classes(probe: Probe) -> None:
    """Promise 8, for classifiers and reward models."""
    if not probe.info.labels:
        return
    texts = ("one", "another text", "and a third one, which is longer than the others")
    prompts = [await probe.backend.tokenize(text, add_special_tokens=True) for text in texts]
    together = await probe.backend.classify(prompts)
    expect(len(together) == len(prompts), 8, f"{len(together)} rows of {len(prompts)} texts")
    sizes = {len(row) for row in together}
    count = len(probe.info.labels)
    expect(sizes == {count}, 8, f"texts have {sizes} numbers, and there are {count} labels")
    expect(all(map(isfinite, chain.from_iterable(together))), 8, f"classes are {together}")
    for prompt, row in zip(prompts, together, strict=True):
        [alone] = await probe.backend.classify([prompt])
        distance = max(abs(a - b) for a, b in zip(alone, row, strict=True))
        expect(distance < 1e-3, 8, f"a class is {distance:.2g} off in a batch")


async def check_stats(probe: Probe) -> None:
    """Promise 10, about the backend's stats, which are optional."""
    await probe.run(await probe.request(n=2))
    await probe.backend.ping()
    stats = probe.backend.stats
    if stats is None:
        return
    left = (stats.running or 0, stats.waiting or 0, stats.kv_used or 0)
    expect(not any(left), 10, f"running, waiting, kv_used are {left} when nothing is left to do")
    for part, whole in (("cache_hits", "cache_queries"), ("accepted", "drafted")):
        some, every = getattr(stats, part) or 0, getattr(stats, whole) or 0
        expect(0 <= some <= every, 10, f"{part} are {some} of {every} {whole}")


async def check_closed(probe: Probe) -> None:
    """Promise 6, for models that generate nothing; the backend is closed afterwards."""
    if probe.info.generates:
        return
    await probe.backend.close()
    try:
        if probe.info.reranks:
            await probe.backend.rerank([[0]])
        elif probe.info.labels:
            await probe.backend.classify([[0]])
        else:
            await probe.backend.embed([[0]])
    except EngineDeadError:
        return
    expect(False, 6, "a closed backend makes embeddings, reranks or classifies")


async def check_death(probe: Probe) -> None:
    """Promise 6; the backend is closed afterwards."""
    running = asyncio.create_task(probe.run(await probe.request(n=2)))
    later = await probe.request()
    await asyncio.sleep(0)
    await probe.backend.close()
    with suppress(EngineDeadError):
        await running
    try:
        await probe.run(later)
    except EngineDeadError:
        return
    expect(False, 6, "a closed backend accepted a request")


_CHECKS: tuple[tuple[int, Check], ...] = (
    (1, check_order),
    (2, check_text),
    (2, check_stop_strings),
    (3, check_abort),
    (4, check_prefill),
    (5, check_refusal),
    (7, check_params),
    (8, check_embeddings),
    (8, check_reranking),
    (8, check_classes),
    (9, check_constraints),
    (9, check_form),
    (10, check_stats),
    (11, check_media),
    (6, check_death),
    (6, check_closed),
)
_CHECKS_WITHOUT_TEXT = (check_embeddings, check_reranking, check_classes, check_closed)
