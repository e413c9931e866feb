"""Checks of non-streaming chat responses."""

from enginebay_conformance.endpoint import STORY, Endpoint, Json
from enginebay_conformance.expect import NotShown, expect
from enginebay_conformance.run_checks import check

SUM = [{"role": "user", "content": "What is 7 + 5?"}]


@check("MLC-1", "MLC-24", "MLC-25", "MLC-33", "MLC-38", "TAB-9", "TAB-11", "TAB-14", "TAB-15",
       "WEB-2", "WEB-4", "WEB-8", "WEB-9", "VLLM-84", "VLLM-98")  # fmt: skip
def whole_answer_is_complete(server: Endpoint) -> None:
    """A response is a `chat.completion` with id, model, one choice, message and finish."""
    answer = server.chat()
    expect(answer["object"] == "chat.completion", f"object is {answer['object']!r}")
    expect(answer["id"].startswith("chatcmpl-"), f"id is {answer['id']!r}")
    expect(answer["model"] == server.model, f"model is {answer['model']!r}")
    [choice] = answer["choices"]
    expect(choice["index"] == 0, f"index is {choice['index']}")
    expect(choice["message"]["role"] == "assistant", f"role is {choice['message']['role']!r}")
    expect("content" in choice["message"], f"the message has {sorted(choice['message'])}")
    expect(choice["finish_reason"] in ("stop", "length"), f"it ends {choice['finish_reason']!r}")


@check("WEB-3")
def created_is_in_seconds(server: Endpoint) -> None:
    """`created` is a Unix time in seconds."""
    created = server.chat()["created"]
    expect(type(created) is int and 10**9 < created < 10**11, f"created is {created!r}")


@check("TAB-10", "TAB-75", "WEB-12")
def what_is_not_there_is_null(server: Endpoint) -> None:
    """Without tools there are no tool calls, without `logprobs` no logprobs, not empty ones."""
    choice = server.chat()["choices"][0]
    expect(choice.get("logprobs") is None, f"logprobs are {choice.get('logprobs')}")
    for key in ("tool_calls", "reasoning_content"):
        value = choice["message"].get(key)
        expect(value is None or bool(value), f"{key} is {value!r}")
    content = choice["message"]["content"]
    expect(not content or bool(content.strip()), f"content is {content!r}")


@check("WEB-1", "MLC-8")
def ids_are_unique(server: Endpoint) -> None:
    """Two answers have two ids."""
    first, second = (server.chat(max_tokens=1)["id"] for _ in range(2))
    expect(first != second, f"both are {first!r}")


@check("MLC-27")
def same_seed_has_the_same_answer(server: Endpoint) -> None:
    """With chance in it, an answer is the same again for the same `seed`."""
    answers = [server.chat(temperature=1, seed=7)["choices"][0]["message"] for _ in range(2)]
    texts = [(each["content"], each.get("reasoning_content")) for each in answers]
    expect(texts[0] == texts[1], f"the answers are {texts}")


@check("MLC-28", "TAB-88", "WEB-5")
def n_choices(server: Endpoint) -> None:
    """`n` returns that many choices, in order."""
    choices = server.chat(n=3)["choices"]
    indices = [choice["index"] for choice in choices]
    expect(indices == [0, 1, 2], f"indices are {indices}")


@check()
def stop_strings_end_an_answer(server: Endpoint) -> None:
    """No part of a stop string is returned, streaming or not."""
    text = server.chat(max_tokens=48)["choices"][0]["message"]["content"] or ""
    if len(text) < 8:
        raise NotShown(f"the model generated only {text!r}")
    for start in range(2, min(len(text) - 3, 12), 2):
        stop = text[start : start + 3]
        expected = text[: text.index(stop)]
        choice = server.chat(max_tokens=48, stop=[stop])["choices"][0]
        whole = choice["message"]["content"] or ""
        streamed = server.stream(max_tokens=48, stop=stop)
        for seen in (whole, streamed.joined()):
            expect(seen == expected, f"stop {stop!r} gave {seen!r}, not {expected!r}")
        reasons = (choice["finish_reason"], streamed.finish_reason())
        expect(reasons == ("stop", "stop"), f"stop {stop!r} ended with {reasons}")


@check("VLLM-69", "TAB-12")
def stop_reason_says_which(server: Endpoint) -> None:
    """`stop_reason` is the stop string that ended a choice, streamed too."""
    text = server.chat(max_tokens=48)["choices"][0]["message"]["content"] or ""
    if len(text) < 8:
        raise NotShown(f"the model generated only {text!r}")
    stop = text[4:7]
    whole = server.chat(max_tokens=48, stop=stop)["choices"][0].get("stop_reason")
    streamed = server.stream(max_tokens=48, stop=stop).choices()[-1].get("stop_reason")
    expect(whole == streamed == stop, f"it is {whole!r}, streamed {streamed!r}")


@check("MLC-36")
def system_message_is_optional(server: Endpoint) -> None:
    """A system message is taken, and the prompt is longer by it."""
    system = [{"role": "system", "content": "Be brief."}]
    short = server.chat(max_tokens=1)["usage"]["prompt_tokens"]
    long = server.chat(max_tokens=1, messages=[*system, *STORY])["usage"]["prompt_tokens"]
    expect(long > short, f"{long} prompt tokens with it and {short} without")


@check("TAB-31")
def text_parts_are_joined(server: Endpoint) -> None:
    """A message of text parts is the same prompt as their text in one."""
    parts = [{"type": "text", "text": text} for text in ("Tell me a story", " about a train.")]
    whole = server.chat()
    parted = server.chat(messages=[{"role": "user", "content": parts}])
    counts = [answer["usage"]["prompt_tokens"] for answer in (whole, parted)]
    expect(counts[0] == counts[1], f"{counts[0]} prompt tokens in one, {counts[1]} in parts")
    texts = [answer["choices"][0]["message"]["content"] for answer in (whole, parted)]
    expect(texts[0] == texts[1], f"the answers are {texts}")


@check("TAB-34", "TAB-35", "TAB-37")
def history_of_calls_is_taken(server: Endpoint) -> None:
    """A conversation with a call and its result goes on."""
    server.chat(messages=_history('{"city": "Oslo"}'))


@check("TAB-36")
def broken_arguments_in_the_history_are_taken(server: Endpoint) -> None:
    """It goes on even if the call's arguments are no JSON, since models write such."""
    server.chat(messages=_history("{broken"))


@check("VLLM-62", "VLLM-85", "TAB-67")
def reasoning_is_apart(server: Endpoint) -> None:
    """Reasoning is in `reasoning_content`, its tags nowhere, streamed as whole."""
    message = server.chat(messages=SUM, max_tokens=200)["choices"][0]["message"]
    reasoning = message.get("reasoning_content")
    if not reasoning:
        raise NotShown("the model did not reason")
    for text in (reasoning, (message["content"] or "")[:20]):
        expect("think>" not in text.lower(), f"there is a tag in {text!r}")
    streamed = server.stream(messages=SUM, max_tokens=200).joined("reasoning_content")
    expect(streamed == reasoning, f"streamed it is {streamed!r}, whole {reasoning!r}")


def _history(arguments: str) -> list[Json]:
    function = {"name": "get_weather", "arguments": arguments}
    call = {"id": "call_0000001", "type": "function", "function": function}
    return [
        *STORY,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0000001", "content": "Sunny."},
    ]


CHECKS = (
    whole_answer_is_complete,
    created_is_in_seconds,
    what_is_not_there_is_null,
    ids_are_unique,
    same_seed_has_the_same_answer,
    n_choices,
    stop_strings_end_an_answer,
    stop_reason_says_which,
    system_message_is_optional,
    text_parts_are_joined,
    history_of_calls_is_taken,
    broken_arguments_in_the_history_are_taken,
    reasoning_is_apart,
)
