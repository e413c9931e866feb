"""Promise 9: a backend whose `ModelInfo.constraints` is true enforces them."""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace

from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.grammar import Grammar, Pattern, Text, choice, json_value
from enginebay.contract.sampling_params import SamplingParams
from enginebay.testing.probe import GREEDY, Choice, Probe, expect

COLOURS = ("red", "green", "blue")
THING: dict[str, object] = {
    "type": "object",
    "properties": {
        "colour": {"enum": list(COLOURS)},
        "count": {"type": "integer", "minimum": 10, "maximum": 99},
        "sizes": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["colour", "count", "sizes"],
    "additionalProperties": False,
}
DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
LONG = "Nothing but this sentence, whatever the model would rather say."
_ROOM = 1000  # tokens for the longest of these, with all the white space that may be in it


async def check_constraints(probe: Probe) -> None:
    """Grammars alone, in company, against other params, cut short and broken."""
    if not probe.info.constraints:
        return
    for check in _CHECKS:
        await check(probe)


async def _whole(probe: Probe) -> None:
    """However hot, the text is all of what the grammar says and nothing else."""
    hot = [SamplingParams(temperature=1.5, seed=seed) for seed in range(3)]
    for sampling in (GREEDY, *hot):
        for grammar, right in _GRAMMARS:
            _expect_kept(grammar, right, await _generate(probe, grammar, sampling))


async def _choices(probe: Probe) -> None:
    """Each choice of a request follows the grammar by itself."""
    sampling = SamplingParams(temperature=1.5, seed=7, max_tokens=_ROOM, constraint=Pattern(DATE))
    for each in await probe.run(await probe.request(sampling, n=2)):
        _expect_kept(Pattern(DATE), _is_date, each)


async def _company(probe: Probe) -> None:
    """Requests with different grammars and without one do not mind each other."""
    alone = await probe.generate()
    free, *kept = await asyncio.gather(
        probe.generate(), *(_generate(probe, grammar, GREEDY) for grammar, _ in _GRAMMARS)
    )
    expect(free.token_ids == alone.token_ids, 9, "a batch with a grammar changed a free answer")
    for (grammar, right), each in zip(_GRAMMARS, kept, strict=True):
        _expect_kept(grammar, right, each)


async def _text(probe: Probe) -> None:
    """Forced tokens, which are not sampled, are reported like the others."""
    said = await _generate(probe, Text(LONG), GREEDY)
    decoded = [await probe.backend.detokenize(ids) for ids in (said.token_ids, said.token_ids[:-1])]
    expect(said.text in decoded, 9, f"the tokens of {said.text!r} are those of {decoded[0]!r}")
    if probe.supports("logprobs"):
        said = await _generate(probe, Text(LONG), replace(GREEDY, logprobs=1))
        entries = [entry.token_id for delta in said.deltas for entry in delta.logprobs or ()]
        text = await probe.backend.detokenize(entries)
        expect(text == said.text, 9, f"{said.text!r} has the logprobs of {text!r}")


async def _bans(probe: Probe) -> None:
    """Nothing that bans tokens takes precedence over a grammar."""
    token_ids = (await _generate(probe, Text(LONG), GREEDY)).token_ids
    tried = {
        "min_tokens": replace(GREEDY, min_tokens=len(token_ids) + 10),
        "ignore_eos": replace(GREEDY, ignore_eos=True),
        "logit_bias": replace(GREEDY, logit_bias=dict.fromkeys(token_ids, -100.0)),
        "allowed_token_ids": replace(GREEDY, allowed_token_ids=token_ids[:1]),
    }
    for name, sampling in tried.items():
        if probe.supports(name):
            said = await _generate(probe, Text(LONG), sampling)
            expect(said.text == LONG, 9, f"{name} beside a grammar gave {said.text!r}")
            expect(said.last.finish_reason == "stop", 9, f"{name} beside a grammar is not 'stop'")


async def _cut(probe: Probe) -> None:
    """A text that ends before the grammar does has `finish_reason` "length"."""
    for grammar in (Text(LONG), Pattern("[0-9]{60}")):
        said = await _generate(probe, grammar, replace(GREEDY, max_tokens=2))
        expect(len(said.token_ids) == 2, 9, f"max_tokens=2 gave {len(said.token_ids)} tokens")
        reason = said.last.finish_reason
        expect(reason == "length", 9, f"a text cut by max_tokens ends with {reason!r}")
    if probe.supports("stop"):
        said = await _generate(probe, Text(LONG), replace(GREEDY, stop=("this",)))
        expect(said.text == "Nothing but ", 9, f"the stop string 'this' gave {said.text!r}")
        reason = said.last.finish_reason
        expect(reason == "length", 9, f"a text cut by a stop string ends with {reason!r}")


async def _broken(probe: Probe) -> None:
    """A grammar that cannot be compiled is refused before any delta, and that request alone."""
    said, neighbour = await asyncio.gather(
        _generate(probe, Pattern("("), GREEDY), probe.generate(), return_exceptions=True
    )
    if isinstance(said, Choice):
        expect(False, 9, f"a grammar that cannot be compiled gave {said.text!r}")
    refused = isinstance(said, InvalidRequestError)
    expect(refused, 9, f"a grammar that cannot be compiled is a {type(said).__name__}: {said}")
    alone = isinstance(neighbour, Choice)
    expect(alone, 9, f"beside a grammar that cannot be compiled there was {neighbour!r}")


async def _generate(probe: Probe, grammar: Grammar, sampling: SamplingParams) -> Choice:
    prompt = (await probe.request()).prompt_token_ids
    room = min(_ROOM, probe.info.context_length - len(prompt))
    max_tokens = sampling.max_tokens or room
    return await probe.generate(replace(sampling, constraint=grammar, max_tokens=max_tokens))


def _expect_kept(grammar: Grammar, right: Callable[[str], bool], choice: Choice) -> None:
    reason = choice.last.finish_reason
    text = choice.text[:100]
    expect(reason == "stop", 9, f"{grammar} ends with {reason!r} after {text!r}")
    expect(right(choice.text), 9, f"{grammar} gave {text!r}")


def _is_date(text: str) -> bool:
    return re.fullmatch(DATE, text) is not None


def _is_thing(text: str) -> bool:
    try:
        thing = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(thing, dict)
        and set(thing) == {"colour", "count", "sizes"}
        and thing["colour"] in COLOURS
        and type(thing["count"]) is int
        and 10 <= thing["count"] <= 99
        and 1 <= len(thing["sizes"]) <= 3
        and all(type(size) is bool for size in thing["sizes"])
    )


_GRAMMARS: tuple[tuple[Grammar, Callable[[str], bool]], ...] = (
    (Pattern(DATE), _is_date),
    (choice(*COLOURS), COLOURS.__contains__),
    (json_value(THING), _is_thing),
    (Text(LONG), LONG.__eq__),
)
_CHECKS = (_whole, _choices, _company, _text, _bans, _cut, _broken)
