"""Where banned strings begin in the tokens of a completion. ENG-5"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.engine.banned_strings import BannedStrings

PIECES = st.lists(st.text("abAé", max_size=3), max_size=12)
BANNED = st.lists(st.text("abAÉ", min_size=1, max_size=4), min_size=1, max_size=3)


@given(PIECES, BANNED)
def test_any_pieces(pieces: list[str], banned: list[str]) -> None:
    watch = BannedStrings(banned)
    text = ""
    for count, piece in enumerate(pieces, start=1):
        text = (text + piece).lower()
        back = watch.add(piece)
        found = [at for each in banned if (at := text.find(each.lower())) >= 0]
        assert bool(back) == bool(found)
        if not found:
            # what is certain cannot be the beginning of a string
            kept = "".join(pieces[: count - watch.uncertain]).lower()
            for each in banned:
                for size in range(1, len(each)):
                    if text.endswith(each.lower()[:size]):
                        assert len(text) - size >= len(kept)
            continue
        before = "".join(pieces[: count - back])
        assert len(before) <= min(found)
        first = next(at for at in range(count - back, count) if pieces[at])
        assert min(found) < len("".join(pieces[: first + 1]))
        return


@given(PIECES, BANNED)
def test_what_is_certain_stays_so_when_tokens_behind_it_are_taken_back(
    pieces: list[str], banned: list[str]
) -> None:
    watch = BannedStrings(banned)
    certain = [0]
    for count, piece in enumerate(pieces, start=1):
        if watch.add(piece):
            return
        certain.append(count - watch.uncertain)
        assert all(before >= certain[-1] for before in certain[certain[-1] :])


def test_a_letter_that_is_certain_only_by_the_next_one() -> None:
    watch = BannedStrings(["aba"])
    uncertain = []
    for piece in ("a", "a", "b"):
        assert watch.add(piece) == 0
        uncertain.append(watch.uncertain)
    assert uncertain == [1, 2, 3]
    assert watch.add("c") == 0
    assert watch.uncertain == 0


@pytest.mark.parametrize(
    ("pieces", "banned", "back"),
    [
        (["x", "a", "b"], "ab", 2),
        (["x", "A", "B"], "ab", 2),
        (["xa", "b"], "ab", 2),
        (["x", "", "a", "b"], "ab", 3),  # the character began in an empty one
        (["ab"], "ab", 1),
        (["a", "", "b"], "ab", 3),
        (["x"], "ab", 0),
    ],
)
def test_where_it_begins(pieces: list[str], banned: str, back: int) -> None:
    watch = BannedStrings([banned])
    assert [watch.add(piece) for piece in pieces][-1] == back


def test_what_stays_begins_nothing() -> None:
    watch = BannedStrings(["ab"])
    watch.add("a")
    assert watch.uncertain == 1
    watch.settle()
    assert (watch.uncertain, watch.add("b")) == (0, 0)
