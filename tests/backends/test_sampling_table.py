"""docs/reference/sampling.md says what the backends say of themselves."""

import re
from pathlib import Path

import pytest

from backends.hf import info as hf
from enginebay import SamplingParams

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "reference" / "sampling.md").read_text("utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| (yes|no) \| (yes|no) \| (yes|no) \|", TABLE, re.MULTILINE)


def said(column: int) -> set[str]:
    return {row[0] for row in ROWS if row[column] == "no"}


def test_every_param_has_a_row() -> None:
    assert [row[0] for row in ROWS] == list(SamplingParams.__dataclass_fields__)


def test_hf() -> None:
    assert said(1) == hf.UNSUPPORTED


def test_llamacpp() -> None:
    info = pytest.importorskip("backends.llamacpp.info", exc_type=ImportError)
    assert said(2) == info.UNSUPPORTED


def test_exllamav2() -> None:
    sampling = pytest.importorskip("backends.exllamav2.sampling")
    assert said(3) == sampling.UNSUPPORTED


# What no test on an arbitrary model can show, or what is tried under another name.
NOT_TRIED = {
    "presence_penalty",
    "ignore_eos",
    "skip_special_tokens",
    "xtc_threshold",
    "dry_base",
    "mirostat_eta",
    "adaptive_decay",
    "constraint",
}


def test_check_backend_tries_all_others() -> None:
    checks = (ROOT / "core" / "testing" / "params.py").read_text("utf-8")
    missing = {row[0] for row in ROWS if row[0] not in checks} - NOT_TRIED
    assert not missing
