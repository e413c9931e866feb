"""Promise 7: every sampling param a backend does not disown has an effect."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace

from enginebay.contract.sampling_params import (
    AsideMarks,
    ReasoningBudget,
    RepetitionDetection,
    SamplingParams,
    StopScope,
)
from enginebay.contract.types import TokenLogprob
from enginebay.testing.chats import check_max_tokens
from enginebay.testing.probe import GREEDY, Probe, expect

SAMPLED = SamplingParams(temperature=1.0, seed=7)
_DRY_LIMITS = ("dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers")


async def check_params(probe: Probe) -> None:
    """Try each param in a way that shows on any model.

    `presence_penalty` is not tried: it moves one token by 2 at most, which need not show. Nor are
    settings that only say how fast something grows or adapts.
    """
    checks = _OF_TEXT if probe.info.chats else _CHECKS
    for names, check in checks:
        if probe.supports(*names):
            await check(probe)


async def _max_tokens(probe: Probe) -> None:
    if probe.info.chats:
        return await check_max_tokens(probe)
    choice = await probe.generate(replace(GREEDY, max_tokens=3))
    expect(len(choice.token_ids) == 3, 7, f"max_tokens=3 gave {len(choice.token_ids)} tokens")
    expect(choice.last.finish_reason == "length", 7, "max_tokens did not finish with 'length'")


async def _stop_token_ids(probe: Probe) -> None:
    token_ids = (await probe.generate()).token_ids
    stop = token_ids[1]
    choice = await probe.generate(replace(GREEDY, stop_token_ids=(stop,)))
    expected = token_ids[: token_ids.index(stop) + 1]
    expect(choice.token_ids == expected, 7, f"stop_token_ids gave {choice.token_ids}")
    expect(choice.last.stop_reason == stop, 7, f"stop_reason is {choice.last.stop_reason!r}")
    text = await probe.backend.detokenize(expected[:-1])
    expect(choice.text == text, 7, f"the stop token shows in the text {choice.text!r}")


async def _greedy(probe: Probe) -> None:
    first, second = await probe.generate(), await probe.generate()
    expect(first.said == second.said, 7, "temperature=0 gave two different answers")


async def _hot(probe: Probe) -> None:
    answers = {
        (await probe.generate(SamplingParams(temperature=5.0, seed=seed))).said for seed in range(4)
    }
    expect(len(answers) > 1, 7, "temperature=5 gave the same answer four times")


async def _seed(probe: Probe) -> None:
    request = await probe.request(SAMPLED, n=2)
    alone = await probe.run(request)
    again = await probe.run(await probe.request(SAMPLED, n=2))
    for first, second in zip(alone, again, strict=True):
        expect(first.said == second.said, 7, "the same seed gave different answers")


def _narrowed(narrow: SamplingParams) -> Callable[[Probe], Awaitable[None]]:
    """A setting so narrow that only the likeliest token is left."""

    async def check(probe: Probe) -> None:
        greedy = await probe.generate()
        sampled = await probe.generate(replace(narrow, temperature=3.0))
        expect(greedy.said == sampled.said, 7, f"{narrow} is not greedy")

    return check


async def _logit_bias(probe: Probe) -> None:
    token_ids = (await probe.generate()).token_ids
    forced = token_ids[1]
    bias = replace(GREEDY, max_tokens=3, logit_bias={forced: 100.0})
    choice = await probe.generate(bias)
    expect(choice.token_ids[0] == forced, 7, "logit_bias=100 did not force a token")
    banned = await probe.generate(replace(GREEDY, logit_bias={token_ids[0]: -100.0}))
    expect(banned.token_ids[0] != token_ids[0], 7, "logit_bias=-100 did not ban a token")


async def _frequency_penalty(probe: Probe) -> None:
    # +100 forces one token; every repetition costs it 2, so it must give way in the end.
    forced = (await probe.generate()).token_ids[1]
    sampling = replace(GREEDY, max_tokens=90, logit_bias={forced: 100.0}, frequency_penalty=2.0)
    choice = await probe.generate(sampling)
    expect(len(set(choice.token_ids)) > 1, 7, "frequency_penalty=2 let a token repeat for ever")


async def _repetition_penalty(probe: Probe) -> None:
    plain = await probe.generate(replace(GREEDY, max_tokens=40))
    other = await probe.generate(replace(GREEDY, max_tokens=40, repetition_penalty=5.0))
    expect(plain.token_ids != other.token_ids, 7, "repetition_penalty=5 changed nothing")


async def _min_tokens(probe: Probe) -> None:
    # A stop token that would end the answer at once must wait for min_tokens.
    first = (await probe.generate()).token_ids[0]
    choice = await probe.generate(replace(GREEDY, stop_token_ids=(first,), min_tokens=3))
    expect(len(choice.token_ids) > 3, 7, f"min_tokens=3 gave {len(choice.token_ids)} tokens")


async def _logprobs(probe: Probe) -> None:
    choice = await probe.generate(replace(GREEDY, max_tokens=4, logprobs=3))
    entries = [entry for delta in choice.deltas for entry in delta.logprobs or ()]
    expect(len(entries) == 4, 7, f"{len(entries)} logprobs for 4 tokens")
    for entry in entries:
        values = [top.logprob for top in entry.top]
        expect(0 < len(values) <= 3, 7, f"{len(values)} top logprobs, not 3")
        expect(values == sorted(values, reverse=True), 7, "top logprobs are not best first")
        expect(values[0] == entry.logprob, 7, "the greedy token is not the likeliest one")
        expect(entry.logprob <= 0, 7, "a log probability is positive")


async def _allowed_token_ids(probe: Probe) -> None:
    allowed = (await probe.generate()).token_ids[1:3]
    for params in (GREEDY, SAMPLED):
        choice = await probe.generate(replace(params, allowed_token_ids=allowed))
        others = set(choice.token_ids) - set(allowed)
        expect(not others, 7, f"allowed_token_ids={allowed} let {others} through")


async def _banned_tokens(probe: Probe) -> None:
    banned = set((await probe.generate()).token_ids)
    bias = dict.fromkeys(banned, -math.inf)
    for params in (GREEDY, SAMPLED):
        choice = await probe.generate(replace(params, logit_bias=bias))
        through = banned.intersection(choice.token_ids)
        expect(not through, 7, f"a logit_bias of minus infinity let {through} through")


async def _prompt_logprobs(probe: Probe) -> None:
    """What the model said, given back to it as a prompt, is as likely as it was."""
    request = await probe.request(replace(GREEDY, logprobs=2))
    [said] = await probe.run(request)
    entries = [entry for delta in said.deltas for entry in delta.logprobs or ()]
    prompt = (*request.prompt_token_ids, *(entry.token_id for entry in entries))
    again = await probe.request(replace(GREEDY, prompt_logprobs=2, max_tokens=1))
    for _ in range(2):  # also when all of it is in a prefix cache
        [choice] = await probe.run(replace(again, prompt_token_ids=prompt))
        found = choice.deltas[0].prompt_logprobs or ()
        again = replace(again, request_id=f"{again.request_id}-again")
        expect(len(found) == len(prompt), 7, f"{len(found)} entries of {len(prompt)} tokens")
        expect(found[0] is None, 7, "the first token of a prompt has a logprob")
        known = found[len(request.prompt_token_ids) :]
        for entry, expected in zip(known, entries, strict=True):
            same = entry and entry.token_id == expected.token_id and len(entry.top) <= 2
            expect(bool(same), 7, f"{entry} is not the entry of {expected.token}")
            off = abs(entry.logprob - expected.logprob) if entry else 0
            expect(off < 0.1, 7, f"the logprob of {expected.token!r} in the prompt is {off} off")
            ranked = entry is None or entry.rank is None or _has_rank(entry, entry.rank)
            expect(ranked, 7, f"{entry} has another rank among the likeliest")


def _has_rank(entry: TokenLogprob, rank: int) -> bool:
    likelier = sum(top.logprob > entry.logprob for top in entry.top)
    there = rank > len(entry.top) or entry.top[rank - 1].logprob == entry.logprob
    return there and rank > likelier


async def _include_stop(probe: Probe) -> None:
    whole = (await probe.generate()).text
    stop = whole[1:3]
    params = replace(GREEDY, stop=(stop,), include_stop_str_in_output=True)
    choice = await probe.generate(params)
    expected = whole[: whole.index(stop) + len(stop)]
    expect(choice.text == expected, 7, f"a stop string to keep gave {choice.text!r}")


async def _stop_scope(probe: Probe) -> None:
    whole = (await probe.generate()).text
    never = AsideMarks(starts=("never\0said",), ends=("never\0said",))
    scope = StopScope(asides=(never,), begins="aside")
    choice = await probe.generate(replace(GREEDY, stop=(whole[1:3],), stop_scope=scope))
    expect(choice.text == whole, 7, f"a stop string outside its scope gave {choice.text!r}")


async def _temperature_last(probe: Probe) -> None:
    # Two tokens, one at least 10 below the other: before this temperature min_p drops it, after it
    # both are about as likely.
    first, *rest = (await probe.generate()).token_ids
    second = next(token_id for token_id in rest if token_id != first)
    params = SamplingParams(
        temperature=100.0,
        min_p=0.5,
        temperature_last=True,
        max_tokens=1,
        logit_bias={first: 100.0, second: 90.0},
    )
    for seed in range(8):
        token_ids = (await probe.generate(replace(params, seed=seed))).token_ids
        expect(token_ids == (first,), 7, "temperature_last=True came before min_p")


async def _typical_p(probe: Probe) -> None:
    answers = {
        (await probe.generate(SamplingParams(typical_p=1e-6, seed=seed))).token_ids
        for seed in range(4)
    }
    expect(len(answers) == 1, 7, "typical_p=1e-6 left more than one token")


async def _xtc(probe: Probe) -> None:
    params = SamplingParams(top_k=2, xtc_probability=1.0, xtc_threshold=0.0)
    greedy, second = await probe.generate(), await probe.generate(params)
    expect(greedy.token_ids[0] != second.token_ids[0], 7, "XTC did not leave out the likeliest")


async def _dry(probe: Probe) -> None:
    forced = (await probe.generate()).token_ids[1]
    params = replace(GREEDY, logit_bias={forced: 100.0}, dry_multiplier=100.0)
    params = replace(params, dry_sequence_breakers=())
    choice = await probe.generate(params)
    expect(len(set(choice.token_ids)) > 1, 7, "DRY let a token repeat for ever")
    for allowed in (replace(params, dry_allowed_length=90), replace(params, dry_penalty_last_n=0)):
        choice = await probe.generate(allowed)
        expect(set(choice.token_ids) == {forced}, 7, f"{allowed} did not let a token repeat")


async def _skew(probe: Probe) -> None:
    # Of 0.5 to the power of exp(20) nothing is left: the likeliest token.
    params = SamplingParams(temperature=3.0, skew=-20.0)
    greedy, sampled = await probe.generate(), await probe.generate(params)
    expect(greedy.token_ids == sampled.token_ids, 7, "skew=-20 is not greedy")


async def _banned_strings(probe: Probe) -> None:
    said = (await probe.generate()).text
    for banned in (said[:1], said[1:4]):
        if "\ufffd" in banned:  # what stands for a part of a character is no text
            continue
        for params in (GREEDY, SAMPLED):
            choice = await probe.generate(replace(params, banned_strings=(banned,)))
            through = banned.lower() in choice.text.lower()
            expect(not through, 7, f"banned_strings let {banned!r} through: {choice.text!r}")
            ended = choice.last.finish_reason is not None
            expect(ended, 7, f"banned_strings of {banned!r} left a choice without an end")


async def _token_healing(probe: Probe) -> None:
    """What follows a prompt that lost the end of its last token is that end."""
    choice = await probe.generate(replace(GREEDY, token_healing=True))
    text = await probe.backend.detokenize(choice.token_ids)
    expect(choice.text in text, 7, f"healing gave {choice.text!r} of the tokens {text!r}")


async def _adaptive_target(probe: Probe) -> None:
    # So cold, the likeliest token has all the probability, and the target is away from it.
    params = SamplingParams(temperature=0.01, adaptive_target=0.0, seed=7)
    greedy, sampled = await probe.generate(), await probe.generate(params)
    expect(greedy.token_ids != sampled.token_ids, 7, "adaptive_target=0 changed nothing")


async def _penalty_last_n(probe: Probe) -> None:
    params = replace(GREEDY, repetition_penalty=5.0, penalty_last_n=0)
    plain, other = await probe.generate(), await probe.generate(params)
    expect(plain.token_ids == other.token_ids, 7, "penalty_last_n=0 left a penalty")


async def _repetition(probe: Probe) -> None:
    """A choice that can say only one token ends when it has said it often enough."""
    said = (await probe.generate()).token_ids[0]
    detected = RepetitionDetection(max_pattern_size=1, min_pattern_size=1, min_count=4)
    always = replace(GREEDY, logit_bias={said: 100.0})
    for params in (
        replace(always, loop_detect_window=4),
        replace(always, repetition_detection=detected),
    ):
        choice = await probe.generate(params)
        if set(choice.token_ids) != {said}:
            continue  # no bias makes this model say it again
        repeated = choice.token_ids == (said,) * 4 and choice.last.stop_reason == "repetition"
        expect(repeated, 7, f"a repetition did not end {choice.token_ids}")


async def _reasoning_budget(probe: Probe) -> None:
    closing = (await probe.generate()).token_ids[1:3]
    budget = ReasoningBudget(
        tokens=2,
        start="never\0said",
        end="never\0said",
        close_token_ids=closing,
        starts_inside=True,
    )
    choice = await probe.generate(replace(GREEDY, reasoning_budget=budget))
    forced = [choice.token_ids[at : at + len(closing)] for at in range(2, 12)]
    expect(closing in forced, 7, f"a budget of 2 did not force {closing}: {choice.token_ids}")


_Checks = tuple[tuple[tuple[str, ...], Callable[[Probe], Awaitable[None]]], ...]

_OF_TEXT: _Checks = (
    (("max_tokens",), _max_tokens),
    (("temperature",), _greedy),
    (("temperature",), _hot),
    (("seed",), _seed),
    (("top_k", "temperature"), _narrowed(SamplingParams(top_k=1))),
    (("top_p", "temperature"), _narrowed(SamplingParams(top_p=1e-6))),
    (("min_p", "temperature"), _narrowed(SamplingParams(min_p=1.0))),
    (("top_n_sigma", "temperature"), _narrowed(SamplingParams(top_n_sigma=1e-6))),
    (
        ("mirostat", "mirostat_tau", "temperature"),
        _narrowed(SamplingParams(mirostat=2, mirostat_tau=0.0)),
    ),
    (
        ("dynatemp_range", "dynatemp_exponent", "temperature"),
        _narrowed(SamplingParams(dynatemp_range=3.0, dynatemp_exponent=1e4)),
    ),
    (("smoothing_factor", "temperature"), _narrowed(SamplingParams(smoothing_factor=1e9))),
    (("top_a", "temperature"), _narrowed(SamplingParams(top_a=1e6))),
    (("tfs", "temperature"), _narrowed(SamplingParams(tfs=1e-6, top_k=3))),
    (("include_stop_str_in_output", "stop"), _include_stop),
)
"""Those that show in the text."""

_CHECKS: _Checks = (
    *_OF_TEXT,
    (("stop_scope", "stop"), _stop_scope),
    (("stop_token_ids",), _stop_token_ids),
    (("logit_bias",), _logit_bias),
    (("logit_bias", "frequency_penalty"), _frequency_penalty),
    (("repetition_penalty",), _repetition_penalty),
    (("min_tokens", "stop_token_ids"), _min_tokens),
    (("logprobs",), _logprobs),
    (("temperature_last", "temperature", "min_p", "logit_bias"), _temperature_last),
    (("typical_p", "temperature"), _typical_p),
    (("xtc_probability", "xtc_threshold", "top_k"), _xtc),
    (("logit_bias", "dry_multiplier", *_DRY_LIMITS), _dry),
    (("skew", "temperature"), _skew),
    (("banned_strings",), _banned_strings),
    (("token_healing",), _token_healing),
    (("adaptive_target", "temperature"), _adaptive_target),
    (("penalty_last_n", "repetition_penalty"), _penalty_last_n),
    (("logit_bias", "loop_detect_window", "repetition_detection"), _repetition),
    (("reasoning_budget",), _reasoning_budget),
    (("allowed_token_ids",), _allowed_token_ids),
    (("logit_bias",), _banned_tokens),
    (("prompt_logprobs", "logprobs"), _prompt_logprobs),
)

TRIED = frozenset(name for names, _ in _CHECKS for name in names)
"""The fields of `SamplingParams` that a check is about."""
