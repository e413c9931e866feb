"""REAL-4: loading a model leaves its vocabulary to the first request with a grammar."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from enginebay import Text, Vocabulary
from enginebay.grammar import compiler
from enginebay.grammar.vocabulary import grammar_tokenizer
from enginebay_hf.engine import HFEngine
from enginebay_llamacpp.engine import LlamaCppEngine
from tests.backends import llamacpp, tiny
from tests.backends.gguf_models import write_llama
from tests.run import Run

Engine = HFEngine | LlamaCppEngine


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Vocabulary]:
    """The vocabularies that the grammar engine has read."""
    found: list[Vocabulary] = []

    def counted(vocabulary: Vocabulary) -> object:
        found.append(vocabulary)
        return grammar_tokenizer(vocabulary)

    monkeypatch.setattr(compiler, "grammar_tokenizer", counted)
    return found


@pytest.fixture(params=["hf", "llamacpp"])
def engine(
    request: pytest.FixtureRequest, tiny_llama: Path, tmp_path: Path, read: list[Vocabulary]
) -> Iterator[Engine]:
    made: Engine
    if request.param == "hf":
        made = tiny.load(tiny_llama)
    else:
        made = llamacpp.load(write_llama(tmp_path / "model.gguf"))
    yield made
    made.close()


def test_the_first_grammar_reads_the_vocabulary(engine: Engine, read: list[Vocabulary]) -> None:
    assert engine.info.constraints
    assert Run(engine, llamacpp.request([5, 60, 7], max_tokens=3)).finish().token_ids()
    assert not read
    engine.compile(Text("a"))
    engine.compile(Text("b"))
    assert len(read) == 1
