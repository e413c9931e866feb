"""Names that clients send for files of a folder."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.config.paths import inside
from enginebay.contract.errors import InvalidRequestError

FOLDER = Path("/srv/loras")
PIECES = st.sampled_from(
    ["..", ".", "/", "//", "a", "b.gguf", "\\", "~", "C:", "\0", "\n", "\ud800", " ", "é", "%2e"]
)


@given(st.one_of(st.text(), st.lists(PIECES).map("".join)))
def test_whatever_comes_stays_inside_or_is_refused(name: str) -> None:
    try:
        path = inside(FOLDER, name, "name")
    except InvalidRequestError:
        return
    assert FOLDER in path.parents
    assert path == FOLDER / name


@pytest.mark.parametrize("name", ["", "..", "x" * 256, "a/" * 600 + "a", "\ud800", "a\x7f"])
def test_what_no_file_is_called(name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        inside(FOLDER, name, "name")
    assert caught.value.param == "name"
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("name", ["pirate", "a/b", "pirate v1.gguf", ".hidden", "~", "Ünï", "a..b"])
def test_ordinary_names(name: str, tmp_path: Path) -> None:
    assert inside(tmp_path, name, "name") == tmp_path / name


def test_links(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    for path in (folder / "real", outside):
        path.mkdir(parents=True)
    (folder / "fine").symlink_to(folder / "real")
    (folder / "out").symlink_to(outside)
    (folder / "round").symlink_to(folder / "round")
    (folder / "self").symlink_to(folder)
    assert inside(folder, "fine/x", "name") == folder / "real" / "x"
    for name in ("out", "out/x", "self", "round/x"):
        with pytest.raises(InvalidRequestError):
            inside(folder, name, "name")
    (tmp_path / "link").symlink_to(folder)
    assert inside(tmp_path / "link", "real", "name") == folder / "real"
