"""Checks of text completions."""

from enginebay_conformance.endpoint import TEXT, Endpoint
from enginebay_conformance.expect import expect
from enginebay_conformance.run_checks import check
from enginebay_conformance.shapes import expect_usage


@check(optional="prompts")
def completion_is_complete(server: Endpoint) -> None:
    """A whole completion is a `text_completion` with text, finish and usage."""
    answer = server.complete()
    expect(answer["object"] == "text_completion", f"object is {answer['object']!r}")
    [choice] = answer["choices"]
    expect(isinstance(choice["text"], str), f"text is {choice['text']!r}")
    expect(choice["finish_reason"] in ("stop", "length"), f"it ends {choice['finish_reason']!r}")
    expect_usage(answer.get("usage"))


@check(optional="prompts")
def streamed_completion_is_the_whole_one(server: Endpoint) -> None:
    """Streamed, it is the same text under one id, with one finish and `[DONE]`."""
    whole = server.complete()["choices"][0]
    stream = server.stream_text(stream_options={"include_usage": True})
    choices = stream.choices()
    text = "".join(choice["text"] for choice in choices)
    expect(text == whole["text"], f"streamed it is {text!r}, whole {whole['text']!r}")
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    expect(reasons == [whole["finish_reason"]], f"it finishes with {reasons}")
    ids = {chunk["id"] for chunk in stream.chunks}
    expect(len(ids) == 1, f"ids are {ids}")
    expect(stream.events[-1] == "[DONE]", f"it ends with {stream.events[-1]!r}")
    expect_usage(stream.usage)


@check(optional="prompts")
def prompts_can_be_several_or_tokens(server: Endpoint) -> None:
    """Several prompts make a choice each; token ids are prompts too."""
    for prompt, count in ((["One", "Two", "Three"], 3), ([5, 6, 7], 1), ([[5, 6], [7]], 2)):
        answer = server.complete(prompt=prompt, max_tokens=2)
        indices = [choice["index"] for choice in answer["choices"]]
        expect(indices == list(range(count)), f"prompt {prompt} gave choices {indices}")


@check()
def empty_prompts_are_refused(server: Endpoint) -> None:
    """A prompt that is missing, or no prompt at all, is a 400."""
    prompts: tuple[object, ...] = ([], {}, 3, None)
    for prompt in prompts:
        response = server.post(TEXT, server.text_body(prompt=prompt))
        expect(response.status_code == 400, f"prompt {prompt} gave {response.status_code}")


CHECKS = (
    completion_is_complete,
    streamed_completion_is_the_whole_one,
    prompts_can_be_several_or_tokens,
    empty_prompts_are_refused,
)
