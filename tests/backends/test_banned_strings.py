"""Texts that a real model never says: the demo model, by transformers and by llama.cpp. ENG-5"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.to_gguf import convert
from enginebay import Engine, Pattern
from tests.backends import llamacpp
from tests.backends.tiny import load as load_hf
from tests.run import Run, request
from tests.support import DEMO_MODEL

PROMPT = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module", params=["hf", "llamacpp"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Engine]:
    if request.param == "hf":
        made: Engine = load_hf(DEMO_MODEL)
    else:
        pytest.importorskip("llama_cpp", exc_type=ImportError)
        target: Path = tmp_path_factory.mktemp("gguf") / "demo.gguf"
        convert(DEMO_MODEL, target, "f16")
        made = llamacpp.load(target)
    yield made
    made.close()


def said(engine: Engine, **sampling: Any) -> Run:
    prompt = engine.tokenize(PROMPT, add_special_tokens=False)
    sampling = {"max_tokens": 14, "ignore_eos": False, **sampling}
    return Run(engine, request(prompt, **sampling)).finish()


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 1.0, "seed": 3},
        {"logprobs": 1},
        {"repetition_penalty": 1.3, "temperature": 0.8, "seed": 1},
    ],
    ids=str,
)
def test_it_never_says_them(engine: Engine, sampling: dict[str, Any]) -> None:
    assert "banned_strings" not in engine.info.unsupported
    free = said(engine).text()
    for banned in ((free[:1].lower(),), (free[2:9], "a "), (free[:4].upper(),)):
        run = said(engine, banned_strings=banned, **sampling)
        assert not run.errors
        assert run.text()
        assert not any(each.lower() in run.text().lower() for each in banned)
        if "logprobs" in sampling:
            entries = [entry for delta in run.deltas["r", 0] for entry in delta.logprobs or ()]
            token_ids = run.token_ids()
            assert [entry.token_id for entry in entries] == token_ids[: len(entries)]


def test_what_is_not_said_anyway_changes_nothing(engine: Engine) -> None:
    assert said(engine, banned_strings=("☃",)).token_ids() == said(engine).token_ids()


def test_beside_a_constraint(engine: Engine) -> None:
    constraint = Pattern("(red|green|blue) and (red|green|blue)")
    engine.compile(constraint)
    free = said(engine, constraint=constraint).text()
    first = free.split()[0]
    run = said(engine, constraint=constraint, banned_strings=(f"{first} ",))
    assert run.text().split()[0] != first
    assert run.text().split()[0] in ("red", "green", "blue")
    demanded = said(engine, constraint=constraint, banned_strings=(" and ",))
    assert " and " in demanded.text()
