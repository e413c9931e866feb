"""From settings to an engine that serves, by way of the registered backend."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay import BackendSettings, BackendUnavailableError
from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from enginebay_exllamav2 import loading
from enginebay_exllamav2.info import UNSUPPORTED
from tests.backends.exllamav2_loading import LoadExLlamaV2
from tests.backends.exllamav2_loading import load_exllamav2 as load_exllamav2
from tests.backends.exllamav2_models import change_config, make_model
from tests.run import Run, request
from tests.support import DEMO_MODEL, Server, serve

QUESTION: Any = [{"role": "user", "content": "Count from 1 to 20."}]


@pytest.fixture(scope="module")
def server(load_exllamav2: LoadExLlamaV2) -> Iterator[Server]:
    """The demo model as `config.yml` would name it, on a thread, where the stand-in is."""
    options = {"max_batch_size": 2, "cache_tokens": 4096, "prefill_tokens": 512}
    model = {
        "name": "demo",
        "backend": "exllamav2",
        "isolation": "thread",
        "path": str(DEMO_MODEL),
        "options": options,
    }
    with serve(Config.model_validate({"models": [model]}), Plugins()) as running:
        yield running


def test_it_serves(server: Server) -> None:
    answer = server.openai.chat.completions.create(
        model="demo", messages=QUESTION, temperature=0, max_tokens=24
    )
    assert answer.choices[0].message.content == "1, 2, 3, 4, 5, 6, 7, 8, "
    assert answer.choices[0].finish_reason == "length"


def test_its_card_names_the_backend_and_the_context(server: Server) -> None:
    [card] = server.http.get("/v1/models").json()["data"]
    assert (card["backend"], card["state"], card["context_length"]) == ("exllamav2", "ready", 4096)


def test_what_the_endpoint_layer_is_told(load_exllamav2: LoadExLlamaV2) -> None:
    engine = load_exllamav2(DEMO_MODEL)
    info = engine.info
    assert (info.context_length, info.vocab_size, info.constraints) == (2048, 3104, True)
    assert "<|im_start|>" in info.chat_template
    assert info.special_tokens["eos_token"] == "<|im_end|>"
    assert info.unsupported >= UNSUPPORTED
    assert engine.detokenize(engine.tokenize("1, 2", add_special_tokens=False)) == "1, 2"
    engine.close()


def test_guessed_tokens_take_nothing_from_the_context(load_exllamav2: LoadExLlamaV2) -> None:
    engine = load_exllamav2(DEMO_MODEL, context_length=512, prompt_lookup=7)
    assert engine.info.context_length == 512
    run = Run(engine, request(list(range(300, 800)), max_tokens=None, ignore_eos=True)).finish()
    assert len(run.token_ids("r")) == 12
    engine.close()


def test_every_end_that_the_folder_names_counts(
    load_exllamav2: LoadExLlamaV2, tmp_path: Path
) -> None:
    """`config.json` may name one token, `generation_config.json` others, the tokenizer its own."""
    make_model(tmp_path)
    change_config(tmp_path, eos_token_id=5)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [6, 7], "top_p": 0.9}')
    engine = load_exllamav2(tmp_path, context_length=512)
    assert engine._eos_token_ids == {1, 5, 6, 7}
    assert engine.info.defaults == {"top_p": 0.9}


def test_progress_ends_with_ready(load_exllamav2: LoadExLlamaV2, tmp_path: Path) -> None:
    make_model(tmp_path)
    said: list[tuple[str, float]] = []
    settings = BackendSettings(
        name="m",
        path=str(tmp_path),
        isolation="thread",
        report_progress=lambda stage, fraction: said.append((stage, fraction)),
    )
    loading.load_engine(settings)
    assert said[0] == ("reading tokenizer", 0.0)
    assert said[-1] == ("ready", 1.0)
    fractions = [fraction for _, fraction in said]
    assert fractions == sorted(fractions)


def test_a_folder_that_is_none_is_named(load_exllamav2: LoadExLlamaV2, tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailableError, match=r"nowhere: there is no such folder"):
        load_exllamav2(tmp_path / "nowhere")


def test_an_extension_that_does_not_load_is_said(
    load_exllamav2: LoadExLlamaV2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path)
    monkeypatch.setitem(sys.modules, "enginebay_exllamav2.engine", None)
    with pytest.raises(
        BackendUnavailableError, match=r"cannot be imported \(.*torch, remove /.*_ext"
    ):
        load_exllamav2(tmp_path)


def test_the_machine_is_looked_at_before_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*, build_extension: bool) -> None:
        raise BackendUnavailableError(f"no GPU, {build_extension}")

    monkeypatch.setattr(loading, "check_library", lacking)
    settings = BackendSettings(
        name="m", path=str(tmp_path / "nowhere"), options={"build_extension": True}
    )
    with pytest.raises(BackendUnavailableError, match="no GPU, True"):
        loading.load_engine(settings)
