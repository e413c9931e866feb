"""Checks of streamed chat answers: the order of things, chunk by chunk."""

import re
from concurrent.futures import ThreadPoolExecutor

from enginebay_conformance.endpoint import CHAT, Endpoint, Stream
from enginebay_conformance.expect import NotShown, expect
from enginebay_conformance.run_checks import check


@check("MLC-12", "MLC-13", "MLC-14", "MLC-15", "TAB-84", "WEB-15", "WEB-35")
def stream_is_framed(server: Endpoint) -> None:
    """A stream is `data:` events of JSON with a blank line each, and `[DONE]` at its end."""
    response = server.post(CHAT, server.chat_body(stream=True))
    kind = response.headers.get("content-type", "")
    expect(kind.startswith("text/event-stream"), f"the content type is {kind!r}")
    blocks = response.text.replace("\r\n", "\n").split("\n\n")
    expect(blocks[-2:] == ["data: [DONE]", ""], f"it ends with {blocks[-2:]}")
    for block in blocks[:-1]:
        expect(block.startswith(("data: ", ":")), f"an event is {block!r}")
        expect("\n" not in block, f"an event has several lines: {block!r}")
    stream = Stream(response.content)
    objects = {chunk.get("object") for chunk in stream.chunks}
    expect(objects == {"chat.completion.chunk"}, f"objects are {objects}")


@check("TAB-22", "TAB-23", "WEB-14", "WEB-16", "WEB-17", "VLLM-39")
def chunks_agree(server: Endpoint) -> None:
    """`id`, `created` and `model` are the same in every chunk."""
    chunks = server.stream(n=2, stream_options={"include_usage": True}).chunks
    for key in ("id", "created", "model"):
        values = {chunk.get(key) for chunk in chunks}
        expect(len(values) == 1 and None not in values, f"{key} is {values}")
    expect(chunks[0]["id"].startswith("chatcmpl-"), f"id is {chunks[0]['id']!r}")
    expect(chunks[0]["model"] == server.model, f"model is {chunks[0]['model']!r}")


@check("VLLM-40", "VLLM-41", "MLC-28")
def each_choice_begins_with_its_role(server: Endpoint) -> None:
    """The first delta of each choice is `role: assistant` and empty content; no other has one."""
    stream = server.stream(n=2)
    for index in (0, 1):
        deltas = stream.deltas(index)
        expect(bool(deltas), f"choice {index} never came")
        first = {"role": "assistant", "content": ""}
        expect(deltas[0] == first, f"choice {index} begins with {deltas[0]}")
        expect(not any("role" in delta for delta in deltas[1:]), "the role came again")


@check("TAB-19", "TAB-26", "WEB-18", "WEB-20", "WEB-38", "VLLM-47", "VLLM-70")
def each_choice_finishes_once(server: Endpoint) -> None:
    """`finish_reason` is null, then comes in a chunk of its own, and then nothing does."""
    stream = server.stream(n=2)
    for index in (0, 1):
        choices = stream.choices(index)
        expect(bool(choices), f"choice {index} never came")
        reasons = [choice["finish_reason"] for choice in choices]
        expect(reasons[:-1] == [None] * (len(reasons) - 1), f"choice {index} has {reasons}")
        expect(reasons[-1] in ("stop", "length", "tool_calls"), f"finish is {reasons[-1]!r}")
        expect(choices[-1]["delta"] == {}, f"the finish came with {choices[-1]['delta']}")


@check("TAB-18", "TAB-21", "TAB-25", "WEB-19", "VLLM-49", "VLLM-76")
def deltas_say_something(server: Endpoint) -> None:
    """A chunk has one choice, and between first and last one field, neither null nor empty."""
    chunks = server.stream().chunks
    counts = {len(chunk["choices"]) for chunk in chunks}
    expect(counts == {1}, f"chunks have {counts} choices")
    for chunk in chunks[1:-1]:
        delta = chunk["choices"][0]["delta"]
        expect(bool(delta) and all(delta.values()), f"a delta is {delta}")
    unset = [key for chunk in chunks for key, value in chunk.items() if value is None]
    expect(not unset, f"chunks have {set(unset)} that are null")


@check()
def chunks_do_not_look_like_errors(server: Endpoint) -> None:
    """No chunk has a key that SillyTavern takes for an error."""
    keys = {key for chunk in server.stream().chunks for key in chunk}
    expect(not keys & {"error", "message", "detail"}, f"chunks have the keys {sorted(keys)}")


@check("WEB-36", "TAB-59", "MLC-16", "MLC-17")
def streamed_is_whole(server: Endpoint) -> None:
    """The deltas joined are the whole answer to the same greedy request."""
    whole = server.chat()["choices"][0]
    stream = server.stream()
    for key in ("content", "reasoning_content"):
        text, streamed = whole["message"].get(key) or "", stream.joined(key)
        expect(streamed == text, f"{key} is {streamed!r} streamed and {text!r} whole")
    finish = stream.finish_reason()
    expect(finish == whole["finish_reason"], f"{finish} streamed, {whole['finish_reason']} whole")


@check("MLC-30", "WEB-37")
def max_tokens_end_with_length(server: Endpoint) -> None:
    """An answer that `max_tokens` cuts off ends with `length`, streamed too."""
    whole = server.chat(max_tokens=2)
    if whole["usage"]["completion_tokens"] < 2:
        raise NotShown("the model generated fewer than two tokens")
    reason = whole["choices"][0]["finish_reason"]
    expect(reason == "length", f"it ended with {reason!r}")
    reason = server.stream(max_tokens=2).finish_reason()
    expect(reason == "length", f"streamed it ended with {reason!r}")


@check("TAB-24")
def text_is_not_escaped(server: Endpoint) -> None:
    """Text outside ASCII is sent as UTF-8, not as `\\u` escapes."""
    words = [{"role": "user", "content": "Repeat after me: 日本 Žluť 😀"}]
    raw = server.stream(messages=words).raw
    escaped = re.findall(rb"(?<!\\)\\u(?!00[0-7])....", raw)  # control characters must be
    expect(not escaped, f"there is {b' '.join(escaped).decode()}")
    if raw.isascii():
        raise NotShown("the model generated nothing outside ASCII")


@check("WEB-1")
def eight_at_a_time_are_answered(server: Endpoint) -> None:
    """Eight streams at a time come to their ends, each under an id of its own."""
    with ThreadPoolExecutor(8) as pool:
        streams = list(pool.map(lambda tokens: server.stream(max_tokens=tokens), range(1, 9)))
    ends = [stream.events[-1] for stream in streams]
    expect(ends == ["[DONE]"] * 8, f"they end with {ends}")
    ids = [{chunk["id"] for chunk in stream.chunks} for stream in streams]
    expect(len(set.union(*ids)) == 8, f"the ids are {ids}")


@check("WEB-7")
def fingerprint_is_the_same(server: Endpoint) -> None:
    """`system_fingerprint` is a text, the same whole and in every chunk."""
    whole = server.chat().get("system_fingerprint")
    if whole is None:
        raise NotShown("there is none")
    streamed = {chunk.get("system_fingerprint") for chunk in server.stream().chunks}
    expect(isinstance(whole, str) and streamed == {whole}, f"whole {whole!r}, streamed {streamed}")


@check("MLC-20", "TAB-87", "VLLM-82")
def leaving_ends_the_work(server: Endpoint) -> None:
    """After forty clients that left at the first event, the next one is answered."""
    body = server.chat_body(stream=True)
    del body["max_tokens"]
    for _ in range(40):
        with server.http.stream("POST", CHAT, json=body) as response:
            expect(response.status_code == 200, f"{response.status_code} after others had left")
            next(response.iter_lines())
    server.chat()


CHECKS = (
    stream_is_framed,
    chunks_agree,
    each_choice_begins_with_its_role,
    each_choice_finishes_once,
    deltas_say_something,
    chunks_do_not_look_like_errors,
    streamed_is_whole,
    max_tokens_end_with_length,
    text_is_not_escaped,
    eight_at_a_time_are_answered,
    fingerprint_is_the_same,
    leaving_ends_the_work,
)
