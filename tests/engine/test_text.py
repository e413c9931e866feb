"""Whole characters and stop strings, however the text is cut."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from enginebay import Detokenizer, StopStrings


def decode(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode(errors="replace")


@given(st.text())
def test_bytes_come_out_as_whole_characters(text: str) -> None:
    detokenizer = Detokenizer(decode)
    pieces = [detokenizer.feed(byte) for byte in text.encode()]
    assert "".join(pieces) + detokenizer.finish() == text
    assert all("\ufffd" not in piece or "\ufffd" in text for piece in pieces)


@given(st.binary())
def test_broken_bytes_come_out_as_decoded(data: bytes) -> None:
    detokenizer = Detokenizer(decode)
    text = "".join(detokenizer.feed(byte) for byte in data) + detokenizer.finish()
    assert text == data.decode(errors="replace")


def test_a_leading_space_depends_on_the_token_before() -> None:
    """As sentencepiece writes it: the first token of a text loses its space."""
    words = ["▁a", "▁b", "c"]

    def decode(token_ids: Sequence[int]) -> str:
        return "".join(words[i] for i in token_ids).replace("▁", " ").removeprefix(" ")

    detokenizer = Detokenizer(decode)
    assert [detokenizer.feed(i) for i in range(3)] == ["a", " b", "c"]


def reference(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The first stop string to end, looked for one character at a time."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(
    st.lists(st.text("ab\n", max_size=4), max_size=8),
    st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_under_every_cut(pieces: list[str], stops: list[str]) -> None:
    stream = StopStrings(stops)
    out = "".join(stream.feed(piece) for piece in pieces)
    if stream.found is None:
        out += stream.finish()
    assert (out, stream.found) == reference("".join(pieces), stops)


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=4))
def test_only_what_could_become_a_stop_string_is_held(text: str, stop: str) -> None:
    stream = StopStrings([stop])
    out = "".join(stream.feed(character) for character in text)
    if stream.found is None:
        held = text[len(out) :]
        assert stop.startswith(held)
        assert held != stop
