"""Checks of logprobs, in both of OpenAI's shapes."""

import math

from enginebay_conformance.endpoint import Endpoint, Json
from enginebay_conformance.expect import Mismatch, NotShown, expect
from enginebay_conformance.run_checks import check

ASKED = {"logprobs": True, "top_logprobs": 2}


@check("MLC-18", "TAB-13", "WEB-12", "WEB-13", "VLLM-100", "VLLM-101", "VLLM-102")
def entries_are_complete(server: Endpoint) -> None:
    """Every entry has token, logprob and bytes, and so has every candidate."""
    for entry in _content(server.chat(**ASKED)["choices"][0]):
        for each in (entry, *entry["top_logprobs"]):
            expect(isinstance(each.get("token"), str), f"an entry is {each}")
            number = each.get("logprob")
            fine = isinstance(number, int | float) and math.isfinite(number) and number <= 1e-6
            expect(fine, f"the logprob of {each['token']!r} is {number!r}")
            raw = each.get("bytes", "absent")
            expect(raw is None or isinstance(raw, list), f"the bytes of an entry are {raw!r}")


@check("VLLM-103")
def candidates_are_as_many_as_asked_for(server: Endpoint) -> None:
    """`top_logprobs` is a list of that many candidates, empty if none are requested."""
    for wanted in (2, 0):
        entries = _content(server.chat(logprobs=True, top_logprobs=wanted)["choices"][0])
        for entry in entries:
            top = entry.get("top_logprobs")
            if not isinstance(top, list):
                raise Mismatch(f"top_logprobs is {top!r}")
            expect(len(top) <= wanted, f"{len(top)} candidates of {wanted}")


@check("TAB-71", "TAB-72", "VLLM-104")
def tokens_are_those_of_the_content(server: Endpoint) -> None:
    """The entries' tokens joined are the content."""
    choice = server.chat(**ASKED)["choices"][0]
    tokens = "".join(entry["token"] for entry in _content(choice))
    content = choice["message"]["content"]
    if not content.isascii():
        raise NotShown("characters outside ASCII may be several tokens each")
    expect(content in tokens, f"the tokens are {tokens!r}, the content {content!r}")


@check("VLLM-48", "TAB-20")
def streamed_entries_are_the_whole_ones(server: Endpoint) -> None:
    """A stream has the same entries, in chunks with content; no chunk has empty ones."""
    whole = [entry["token"] for entry in _content(server.chat(**ASKED)["choices"][0])]
    streamed: list[str] = []
    for choice in server.stream(**ASKED).choices():
        if "logprobs" in choice and choice["logprobs"] is not None:
            entries = choice["logprobs"]["content"]
            expect(bool(entries), f"a chunk has the logprobs {choice['logprobs']}")
            expect(bool(choice["delta"].get("content")), f"they came with {choice['delta']}")
            streamed += [entry["token"] for entry in entries]
    expect(streamed == whole, f"streamed they are {streamed}, whole {whole}")


@check(optional="prompts")
def completions_have_the_old_shape(server: Endpoint) -> None:
    """`logprobs: 2` of a text completion gives four lists of one length."""
    logprobs = server.complete(logprobs=2)["choices"][0].get("logprobs")
    expect(isinstance(logprobs, dict), f"logprobs are {logprobs!r}")
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    lists = [logprobs.get(name) for name in names]
    expect(all(isinstance(each, list) for each in lists), f"logprobs are {logprobs}")
    lengths = [len(each) for each in lists]
    expect(len(set(lengths)) == 1 and lengths[0] > 0, f"their lengths are {lengths}")
    for top in logprobs["top_logprobs"]:
        expect(len(top) in (1, 2, 3), f"candidates are {top}")


def _content(choice: Json) -> list[Json]:
    if not choice["message"].get("content"):
        raise NotShown("the model generated nothing outside of its reasoning")
    entries: list[Json] | None = (choice.get("logprobs") or {}).get("content")
    expect(bool(entries), f"logprobs are {choice.get('logprobs')!r}")
    return entries or []


CHECKS = (
    entries_are_complete,
    candidates_are_as_many_as_asked_for,
    tokens_are_those_of_the_content,
    streamed_entries_are_the_whole_ones,
    completions_have_the_old_shape,
)
