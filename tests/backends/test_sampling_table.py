"""docs/reference/sampling.md says what the engines say of themselves, and no more."""

import re
from pathlib import Path

import pytest

from enginebay import SamplingParams
from enginebay.testing import params
from tests.backends import tiny
from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "reference" / "sampling.md").read_text("utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| (yes|no) \| (yes|no) \| (yes|no) \|", PAGE, re.MULTILINE)


def said(column: int) -> set[str]:
    return {row[0] for row in ROWS if row[column] == "no"}


def test_only_exceptions_have_a_row() -> None:
    assert ROWS
    assert {row[0] for row in ROWS} == said(1) | said(2) | said(3)


def test_hf(tiny_llama: Path) -> None:
    engine = tiny.load(tiny_llama)
    assert said(1) == engine.info.unsupported
    engine.close()


def test_llamacpp(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", exc_type=ImportError)
    from tests.backends.gguf_models import write_llama
    from tests.backends.llamacpp import load

    write_llama(tmp_path / "llama.gguf")
    engine = load(tmp_path / "llama.gguf")
    assert said(2) == engine.info.unsupported
    engine.close()


def test_exllamav2() -> None:
    info = pytest.importorskip("enginebay_exllamav2.info", exc_type=ImportError)
    assert said(3) == info.UNSUPPORTED


# What no test on an arbitrary model can show.
NOT_TRIED = {
    "presence_penalty",
    "ignore_eos",
    "skip_special_tokens",
    "format_marks",
    "dry_base",
    "mirostat_eta",
    "adaptive_decay",
}
ELSEWHERE = {"constraint"}  # enginebay.testing.constraints


def test_check_backend_tries_all_others() -> None:
    assert set(SamplingParams.__dataclass_fields__) - params.TRIED == NOT_TRIED | ELSEWHERE
