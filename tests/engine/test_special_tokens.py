"""Which special tokens a completion shows, and how it finds stop strings in hidden ones. REAL-5"""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from enginebay import (
    Completion,
    Delta,
    Detokenizer,
    GenerationRequest,
    SamplingParams,
    SpecialTokens,
    StopStrings,
    TokenLogprob,
    TopLogprob,
)

TEXTS = ("<eos>", "<think>", "<|im_end|>", "<unused>", "a", "b", "\n")
END, THINK, TURN, UNUSED, A, B, LINE = range(len(TEXTS))
SPECIAL = SpecialTokens({END, THINK, TURN, UNUSED}, TEXTS.__getitem__)


def decode(token_ids: Sequence[int]) -> str:
    return "".join(TEXTS[i] for i in token_ids)


def run(token_ids: Sequence[int], *, takes_back: bool = False, **params: Any) -> list[Delta]:
    """The deltas of a completion of these tokens, up to its end."""
    request = GenerationRequest(
        request_id="r", prompt_token_ids=(A,), sampling=SamplingParams(**params)
    )
    completion = Completion(
        request,
        0,
        max_tokens=len(token_ids),
        eos_token_ids=frozenset({END}),
        detokenizer=Detokenizer(decode),
        special_tokens=SPECIAL,
        takes_back=takes_back,
    )
    deltas: list[Delta] = []
    for token_id in token_ids:
        tops = (TopLogprob(UNUSED, TEXTS[UNUSED], -1.0), TopLogprob(A, "a", -2.0))
        entry = TokenLogprob(token_id, TEXTS[token_id], 0.0, tops)
        deltas.append(completion.append(token_id, entry))
        if completion.to_take_back or deltas[-1].finish_reason:
            break
    return deltas


def text(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


ALL = (A, THINK, B, UNUSED, TURN, A)


def test_special_tokens_are_hidden_unless_asked_for() -> None:
    assert text(run(ALL)) == "aba"
    assert text(run(ALL, skip_special_tokens=False)) == decode(ALL)


def test_the_tokens_of_a_format_are_kept() -> None:
    marks = ("<think>\n", "</think>", "[unused")
    assert text(run(ALL, format_marks=marks)) == "a<think>ba"


def test_end_tokens_that_end_nothing() -> None:
    went_on = (A, END, B)
    assert text(run(went_on, ignore_eos=True)) == "ab"
    assert text(run(went_on, ignore_eos=True, skip_special_tokens=False)) == "a<eos>b"
    assert text(run(went_on, skip_special_tokens=False)) == "a"


def test_stop_strings_name_hidden_tokens() -> None:
    deltas = run(ALL, stop=("<|im_end|>",))
    assert (text(deltas), deltas[-1].stop_reason) == ("ab", "<|im_end|>")
    kept = run(ALL, stop=("<|im_end|>",), include_stop_str_in_output=True)
    assert text(kept) == "ab<|im_end|>"
    ended = run((A, END, B), stop=("<eos>",), ignore_eos=True)
    assert (text(ended), ended[-1].stop_reason) == ("a", "<eos>")


def test_the_beginning_of_a_stop_string_is_hidden_as_well() -> None:
    stop = ("<|im_end|>\nb",)
    assert text(run((A, TURN, LINE, B, A), stop=stop)) == "a"
    assert text(run((A, TURN, LINE, A), stop=stop)) == "a\na"
    assert text(run((A, TURN), stop=stop)) == "a"


def test_banned_strings_name_hidden_tokens() -> None:
    banned = ("b<|IM_END|>",)
    assert text(run((A, B, LINE, TURN), banned_strings=banned, takes_back=True)) == "ab\n"
    found = run((A, B, TURN, A), banned_strings=banned, takes_back=True)
    assert len(found) == 3  # it ends with the token that completes the string


def test_logprobs_have_all_tokens_and_the_bytes_of_the_text() -> None:
    # REAL-5, REAL-6
    for params in ({}, {"skip_special_tokens": False}, {"format_marks": ("<think>",)}):
        deltas = run((*ALL, END), logprobs=2, **params)
        entries = [entry for delta in deltas for entry in delta.logprobs or ()]
        assert [entry.token for entry in entries] == [TEXTS[i] for i in ALL]
        assert b"".join(entry.added_bytes for entry in entries).decode() == text(deltas)
        shown = b"<unused>" if params.get("skip_special_tokens") is False else b""
        assert [top.added_bytes for top in entries[0].top] == [shown, b"a"]


def test_token_ids_are_those_that_were_sampled() -> None:
    assert [i for delta in run(ALL) for i in delta.token_ids] == list(ALL)


PIECES = st.lists(st.tuples(st.text("ab", max_size=3), st.booleans()), max_size=8)


@given(PIECES, st.lists(st.text("ab", min_size=1, max_size=3), max_size=2), st.booleans())
def test_hidden_text_never_comes_out(
    pieces: list[tuple[str, bool]], stops: list[str], keep: bool
) -> None:
    """Written in capitals, hidden text is compared with what comes out of a search that sees it."""
    stream, plain = StopStrings(stops, keep=keep), StopStrings(stops, keep=keep)
    shown = marked = seen = ""
    for piece, hidden in pieces:
        shown += stream.feed(piece, hidden=hidden)
        seen += plain.feed(piece)
        marked += piece.upper() if hidden else piece
    shown, seen = shown + stream.finish(), seen + plain.finish()
    assert stream.found == plain.found
    end = len(seen) - (len(stream.found) if keep and stream.found else 0)
    assert shown == "".join(c for c in marked[:end] if c.islower()) + seen[end:]
