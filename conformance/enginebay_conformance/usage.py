"""Checks of token counts."""

import math

from enginebay_conformance.endpoint import CHAT, Endpoint, Stream, answered
from enginebay_conformance.expect import Mismatch, NotShown, Unsupported, expect
from enginebay_conformance.run_checks import check
from enginebay_conformance.shapes import expect_usage

ASKED = {"stream_options": {"include_usage": True}}
CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
EXTRA = (
    "e2e_latency_s",
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
    "time_to_first_token_s",
    "time_per_output_token_s",
)


@check("MLC-19", "MLC-26", "TAB-16", "WEB-6", "WEB-23", "WEB-25", "VLLM-96")
def whole_answer_has_usage(server: Endpoint) -> None:
    """A whole answer always has its three counts."""
    usage = expect_usage(server.chat(max_tokens=3).get("usage"))
    expect(1 <= usage["completion_tokens"] <= 3, f"{usage['completion_tokens']} of 3 tokens")


@check("MLC-29", "TAB-28", "TAB-77", "WEB-21", "WEB-22", "VLLM-73", "VLLM-75")
def stream_ends_with_usage(server: Endpoint) -> None:
    """With `include_usage` the last chunk has usage and no `choices`; in the others it is null."""
    *chunks, last = server.stream(**ASKED).chunks
    others = [chunk.get("usage", "missing") for chunk in chunks]
    expect(all(usage is None for usage in others), f"usage of other chunks is {others[:1]}")
    expect(last["choices"] == [], f"the last chunk has the choices {last['choices']}")
    usage = expect_usage(last.get("usage"))
    expect(None not in usage.values(), f"usage is {usage}")


@check("TAB-77", "WEB-21")
def usage_comes_only_when_asked_for(server: Endpoint) -> None:
    """Without `include_usage` no chunk has usage."""
    chunks = server.stream().chunks
    expect(not any(chunk.get("usage") for chunk in chunks), "a chunk has usage")


@check("TAB-83", "VLLM-45")
def prompt_is_counted_once(server: Endpoint) -> None:
    """With `n` the prompt counts once, and the completions of all choices."""
    one = expect_usage(server.chat(max_tokens=2)["usage"])
    three = expect_usage(server.chat(max_tokens=2, n=3)["usage"])
    prompts = (one["prompt_tokens"], three["prompt_tokens"])
    expect(prompts[0] == prompts[1], f"the prompt is {prompts[0]}, with n=3 {prompts[1]}")
    count = three["completion_tokens"]
    expect(3 <= count <= 6, f"{count} completion tokens with n=3 and max_tokens=2")


@check("TAB-83")
def streams_count_as_whole_answers(server: Endpoint) -> None:
    """The same request has the same counts, streamed or whole."""
    whole = expect_usage(server.chat()["usage"])
    streamed = expect_usage(server.stream(**ASKED).usage)
    for key in ("prompt_tokens", "completion_tokens"):
        expect(streamed[key] == whole[key], f"{key} is {streamed[key]}, whole {whole[key]}")


@check("WEB-24", "VLLM-46", "VLLM-74")
def cached_tokens_are_told(server: Endpoint) -> None:
    """The whole prompt is counted, and its cached part is reported separately."""
    counts = [server.chat(max_tokens=1)["usage"] for _ in range(2)]
    prompts = {usage["prompt_tokens"] for usage in counts}
    expect(len(prompts) == 1, f"the same prompt counted {prompts}")
    cached = (counts[1].get("prompt_tokens_details") or {}).get("cached_tokens")
    if type(cached) is not int:
        raise Mismatch(f"usage is {counts[1]}")
    expect(0 <= cached <= min(prompts), f"{cached} cached of {min(prompts)}")


@check("VLLM-42", "VLLM-71", optional="continuous usage")
def usage_can_be_continuous(server: Endpoint) -> None:
    """With `continuous_usage_stats` every chunk has counts, from 0 on and never less."""
    response = server.post(CHAT, server.chat_body(stream=True, **CONTINUOUS))
    named = response.headers.get("x-unsupported-params", "")
    if "continuous_usage_stats" in named:
        raise Unsupported(f"the server says: unsupported parameters: {named}")
    chunks = Stream(answered(response).content).chunks
    expect(all(chunk.get("usage") for chunk in chunks), "there are chunks without usage")
    counts = [expect_usage(chunk["usage"])["completion_tokens"] for chunk in chunks]
    expect(counts[0] == 0, f"the first chunk counts {counts[0]}")
    expect(counts == sorted(counts), f"the counts are {counts}")


@check("VLLM-72")
def continuous_usage_must_be_asked_for(server: Endpoint) -> None:
    """`continuous_usage_stats` alone gives no usage."""
    chunks = server.stream(stream_options={"continuous_usage_stats": True}).chunks
    expect(not any(chunk.get("usage") for chunk in chunks), "a chunk has usage")


@check("WEB-26", "WEB-27", "WEB-28", "WEB-29", "WEB-30", "WEB-34")
def extra_times_are_numbers(server: Endpoint) -> None:
    """`usage.extra` has WebLLM's five numbers, always finite, even for a single token."""
    usages = [server.chat(max_tokens=1)["usage"], server.stream(**ASKED).usage or {}]
    for usage in usages:
        extra = usage.get("extra")
        if extra is None:
            raise NotShown("usage has no `extra`")
        for name in EXTRA:
            number = extra.get(name)
            fine = isinstance(number, int | float) and math.isfinite(number) and number >= 0
            expect(fine, f"{name} is {number!r}")


CHECKS = (
    whole_answer_has_usage,
    stream_ends_with_usage,
    usage_comes_only_when_asked_for,
    prompt_is_counted_once,
    streams_count_as_whole_answers,
    cached_tokens_are_told,
    usage_can_be_continuous,
    continuous_usage_must_be_asked_for,
    extra_times_are_numbers,
)
