"""The pipe of one choice, with parsers that split at one character."""

import pytest

from enginebay import (
    ContentDelta,
    Delta,
    Parser,
    Part,
    ReasoningDelta,
    ReasoningParser,
    TokenLogprob,
    ToolCallDelta,
)
from enginebay.chat.answer.collector import Collector


class Reasoning(ReasoningParser):
    """`(` and `)` around reasoning; a `[` is held back, as if it could become a tag."""

    def __init__(self, inside: bool = False) -> None:
        self.inside = inside
        self.held = ""
        self.stretches: list[tuple[int, bool]] = []

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        for character in text:
            if character in "()":
                self.inside = character == "("
                self.stretches.append((len(self.held) + 1, True))
                self.held = ""
            elif character == "[":
                self.held += character
            else:
                text, self.held = self.held + character, ""
                self.stretches.append((len(text), self.inside))
                parts.append(ReasoningDelta(text) if self.inside else ContentDelta(text))
        return parts

    def finish(self) -> list[Part]:
        self.stretches.append((len(self.held), self.inside))
        return [ContentDelta(self.held)] if self.held else []

    def settled(self) -> list[tuple[int, bool]]:
        stretches, self.stretches = self.stretches, []
        return stretches


class Tools(Parser):
    """`{name}` is a call."""

    def __init__(self) -> None:
        self.call: str | None = None
        self.calls = 0

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        for character in text:
            if character == "{":
                self.call = ""
            elif character == "}" and self.call is not None:
                parts += [
                    ToolCallDelta(self.calls, self.call),
                    ToolCallDelta(self.calls, arguments="{}"),
                ]
                self.call, self.calls = None, self.calls + 1
            elif self.call is not None:
                self.call += character
            else:
                parts.append(ContentDelta(character))
        return parts

    def finish(self) -> list[Part]:
        return [ContentDelta("{" + self.call)] if self.call is not None else []


def collector(trim: bool = True) -> Collector:
    return Collector(Reasoning(), Tools(), trim=trim, new_call_id=lambda: "id")


def collect(collector: Collector, *texts: str) -> list[Part]:
    parts: list[Part] = []
    for text in texts[:-1]:
        parts += collector.feed(Delta(text=text))
    return parts + collector.feed(Delta(text=texts[-1], finish_reason="stop"))


def test_phases_in_one_delta() -> None:  # TAB-60, TAB-63, TAB-65, TAB-67
    assert collect(collector(), "a(b)c{f}d") == [
        ContentDelta("a"),
        ReasoningDelta("b"),
        ContentDelta("c"),
        ToolCallDelta(0, "f", "{}", "id"),
        ContentDelta("d"),
    ]


def test_no_parsers_pass_text_through() -> None:  # TAB-64
    assert collect(Collector(), "  (a", "{b} ") == [ContentDelta("  (a"), ContentDelta("{b} ")]


@pytest.mark.parametrize(
    ("texts", "content"),
    [
        (["(x)", " \n", "a", " "], "\n".join([" ", "a "])),
        (["(x)", "\n\n"], ""),
        (["\n", "a"], "\na"),
        (["a ", "(x)", " ", " b"], "a   b"),
        (["{f}", "\n", "{g}", "\n"], ""),
    ],
)
def test_white_space_waits_for_text(texts: list[str], content: str) -> None:  # TAB-68, TAB-75
    parts = collect(collector(), *texts)
    assert "".join(part.text for part in parts if isinstance(part, ContentDelta)) == content
    assert not any(isinstance(part, ContentDelta) and not part.text.strip() for part in parts[:1])


def test_calls_get_an_id_once_each() -> None:  # TAB-51
    ids = iter(["one", "two"])
    pipe = Collector(None, Tools(), new_call_id=lambda: next(ids))
    parts = collect(pipe, "{f}", "{g}")
    assert parts == [ToolCallDelta(0, "f", "{}", "one"), ToolCallDelta(1, "g", "{}", "two")]
    assert pipe.tool_calls


def test_what_is_held_comes_out_at_the_end() -> None:
    pipe = collector()
    assert collect(pipe, "a[") == [ContentDelta("a[")]
    assert collect(collector(), "{f") == [ContentDelta("{f")]
    assert not pipe.tool_calls


def logprob(token: str) -> TokenLogprob:
    return TokenLogprob(ord(token[0]), token, -1.0)


def logprobs_of(pipe: Collector, *texts: str) -> list[tuple[str, str]]:
    """Content and the tokens whose logprobs came with it, one token a delta."""
    parts: list[Part] = []
    for text in texts:
        parts += pipe.feed(Delta(text=text, logprobs=(logprob(text),)))
    parts += pipe.feed(Delta(finish_reason="stop"))
    return [
        (part.text, "".join(entry.token for entry in part.logprobs))
        for part in parts
        if isinstance(part, ContentDelta)
    ]


def test_logprobs_belong_to_content() -> None:  # TAB-71, TAB-72
    assert logprobs_of(collector(), "a", "b") == [("a", "a"), ("b", "b")]
    assert logprobs_of(collector(), "(", "x", ")", "a") == [("a", "a")]
    assert logprobs_of(collector(), "a", "{f", "}", "b") == [("a", "a"), ("b", "b")]


def test_logprobs_of_held_text_wait_for_it() -> None:  # TAB-72
    assert logprobs_of(collector(), "a", "[", "b") == [("a", "a"), ("[b", "[b")]
    assert logprobs_of(collector(), "[") == [("[", "[")]
    assert logprobs_of(collector(), "\n", "a") == [("\na", "\na")]


def test_a_dropped_tag_has_no_logprobs() -> None:
    assert logprobs_of(collector(), "a", ")", "b") == [("a", "a"), ("b", "b")]


def test_text_that_the_engine_holds_keeps_its_logprobs() -> None:
    pipe = collector()
    parts = pipe.feed(Delta(text="", logprobs=(logprob("a"),)))
    parts += pipe.feed(Delta(text="ab", logprobs=(logprob("b"),)))
    assert parts == [ContentDelta("ab", (logprob("a"), logprob("b")))]


def test_a_token_that_closes_a_tag_has_no_logprobs() -> None:  # TAB-71
    assert logprobs_of(collector(), "(", "x)a", "b") == [("a", ""), ("b", "b")]


@pytest.mark.parametrize("size", [1, 2, 100])
def test_reasoning_stays_in_the_content(size: int) -> None:
    """Complaint 7, vLLM #43171: tags that clients look for, and none without reasoning."""
    for text, expected in [
        ("a(b)c", "a<think>b</think>c"),
        ("(b)\n\nc", "<think>b</think>\n\nc"),
        ("(b)\n", "<think>b</think>"),
        ("(b", "<think>b"),
        ("(b)c(d)e", "<think>b</think>c<think>d</think>e"),
        ("abc", "abc"),
        ("()a", "a"),
    ]:
        pipe = Collector(Reasoning(), Tools(), trim=True, merge=True)
        parts = collect(pipe, *[text[i : i + size] for i in range(0, len(text), size)])
        assert all(isinstance(part, ContentDelta) for part in parts)
        assert "".join(part.text for part in parts if isinstance(part, ContentDelta)) == expected


def test_merged_reasoning_ends_in_front_of_a_call() -> None:
    pipe = Collector(Reasoning(), Tools(), merge=True, new_call_id=lambda: "id")
    assert collect(pipe, "(b){f}c") == [
        ContentDelta("<think>b</think>"),
        ToolCallDelta(0, "f", "{}", "id"),
        ContentDelta("c"),
    ]


def test_tokens_of_reasoning() -> None:
    """Those of thought and its tags, whether the engine's deltas were joined or not."""
    texts = ["a", "(", "b", "[", "c", ")", "d"]
    single, joined = collector(), collector()
    for text in texts:
        single.feed(Delta(text=text, token_ids=(1,)))
    joined.feed(Delta(text="".join(texts), token_ids=(1,) * 7, pieces=tuple((1, 1) for _ in texts)))
    for pipe in (single, joined):
        pipe.feed(Delta(token_ids=(0,), finish_reason="stop"))
        assert pipe.reasoning_tokens == 5
    assert collector().reasons
    assert not Collector().reasons
