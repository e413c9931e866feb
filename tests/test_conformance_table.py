"""`docs/reference/conformance.md` is current, and every row has something that shows it."""

from enginebay_conformance.checks import CHECKS
from enginebay_conformance.rows import load_rows
from tests.conformance.table import COMMAND, FILE, IDS, cited, written
from tests.support import REPOSITORY


def test_the_file_is_current() -> None:
    assert FILE.read_text(encoding="utf-8") == written(), f"run: {COMMAND}"


def test_every_row_is_listed_once() -> None:
    assert list(load_rows()) == IDS


def test_the_five_systems_have_307_rows_none_of_which_comes_later() -> None:  # FIX-8
    systems = {"MLC", "TAB", "WEB", "LF", "VLLM"}
    rows = [row for row in load_rows().values() if row.id.partition("-")[0] in systems]
    assert len(rows) == 307
    assert not any(row.later for row in rows)


def test_every_row_is_shown_by_a_test() -> None:
    shown = cited()
    assert [row.id for row in load_rows().values() if not (row.later or shown[row.id])] == []


def test_only_rows_that_exist_are_named() -> None:
    assert set(cited()) <= set(load_rows())


def test_rows_say_where_the_code_is() -> None:
    missing = {row.where for row in load_rows().values() if not (REPOSITORY / row.where).exists()}
    assert missing == set()


def test_checks_have_names_of_their_own() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
