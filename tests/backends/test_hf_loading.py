"""From a folder to a model: the plugin, what a model says of itself, devices, progress."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers.utils import logging as transformers_logging

import enginebay_hf
from enginebay import (
    BackendSettings,
    BackendUnavailableError,
    SamplingParams,
)
from enginebay.contract.registers import BackendRegister
from enginebay_checkpoint.defaults import sampling_defaults
from enginebay_hf.options import HFOptions
from enginebay_hf.progress import weights_progress
from tests.backends.tiny import CHAT_TEMPLATE, VOCAB_SIZE, edit, load, refusal, request

ROOT = Path(__file__).parents[2]


# The plugin.


def test_the_plugin_registers_hf() -> None:
    register = BackendRegister()
    enginebay_hf.register_backends(register)
    assert register["hf"].options is HFOptions


async def test_a_registered_backend_starts_and_answers(tiny_llama: Path) -> None:
    register = BackendRegister()
    enginebay_hf.register_backends(register)
    options = HFOptions(device="cpu", context_length=64)
    backend = register["hf"].create(
        BackendSettings(name="tiny", path=str(tiny_llama), options=options)
    )
    info = await backend.start()
    assert info.context_length == 64
    token_ids = await backend.tokenize("the quick", add_special_tokens=True)
    deltas = [delta async for delta in backend.generate(request(token_ids, max_tokens=5))]
    text = "".join(delta.text for delta in deltas)
    sampled = [token for delta in deltas for token in delta.token_ids]
    assert text == await backend.detokenize(sampled)
    assert deltas[-1].finish_reason == "length"
    await backend.close()


# What a model says of itself.


def test_model_info(tiny_llama: Path) -> None:
    engine = load(tiny_llama)
    info = engine.info
    assert info.context_length == 256
    assert info.vocab_size == VOCAB_SIZE
    assert info.chat_template == CHAT_TEMPLATE
    assert info.special_tokens == {
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "pad_token": "<|pad|>",
    }
    assert info.longest_token == len("<tool_call>")
    assert engine._eos_token_ids == {1}


def test_the_default_of_several_chat_templates(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    templates = [
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "plain"},
    ]
    edit(folder / "tokenizer_config.json", chat_template=templates)
    info = load(folder).info
    assert (info.chat_template, info.chat_templates) == ("plain", {"tool_use": "tools"})


def test_context_length_may_be_shortened_and_not_stretched(folder: Path) -> None:
    assert load(folder, context_length=100).info.context_length == 100
    assert "257 exceeds the 256" in refusal(folder, context_length=257)


def test_eos_ids_of_all_configs(folder: Path) -> None:
    edit(folder / "config.json", eos_token_id=7)
    edit(folder / "generation_config.json", eos_token_id=[8, 9])
    assert load(folder)._eos_token_ids == {1, 7, 8, 9}


@pytest.mark.parametrize(
    ("generation_config", "defaults"),
    [
        ({}, {}),
        ({"eos_token_id": 1, "max_length": 20}, {}),
        ({"temperature": 0.6, "top_k": 20}, {"temperature": 0.6, "top_k": 20}),
        ({"do_sample": True, "top_p": 0.9, "min_p": None}, {"top_p": 0.9}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
        (
            {"do_sample": False, "repetition_penalty": 1.1},
            {"temperature": 0.0, "repetition_penalty": 1.1},
        ),
    ],
)
def test_sampling_defaults(generation_config: dict[str, Any], defaults: dict[str, Any]) -> None:
    assert sampling_defaults(generation_config) == defaults
    SamplingParams(**defaults)


def test_generation_config_of_a_folder(folder: Path) -> None:
    edit(folder / "generation_config.json", temperature=0.5, do_sample=True)
    assert load(folder).info.defaults == {"temperature": 0.5}


# Progress.


def test_progress_rises_and_nothing_is_printed(
    tiny_llama: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reports: list[tuple[str, float]] = []
    settings_ = BackendSettings(
        name="tiny",
        path=str(tiny_llama),
        options=HFOptions(device="cpu"),
        report_progress=lambda stage, fraction: reports.append((stage, fraction)),
    )
    from enginebay_hf.loading import load_engine

    load_engine(settings_)
    fractions = [fraction for _, fraction in reports]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0, 1)
    stages = list(dict.fromkeys(stage.partition(":")[0] for stage, _ in reports))
    assert stages == ["reading tokenizer", "loading weights", "checking the model", "ready"]
    size = sum(file.stat().st_size for file in tiny_llama.glob("*.safetensors"))
    loading = [stage for stage, _ in reports if stage.startswith("loading weights")]
    assert len(loading) > 10
    megabytes = f"{size / 10**6:.0f}"
    assert loading[-1] == f"loading weights: {megabytes} of {megabytes} MB"  # REAL-13
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_progress_belongs_to_one_thread() -> None:
    here: list[float] = []
    there: list[Any] = []
    with weights_progress(here.append):
        other = threading.Thread(
            target=lambda: there.extend(transformers_logging.tqdm([1, 2], disable=True))
        )
        other.start()
        other.join()
        assert list(transformers_logging.tqdm(["a", "b"], desc="Loading weights")) == ["a", "b"]
    assert here == [0.5, 1.0]
    assert there == [1, 2]
    assert list(transformers_logging.tqdm([1], disable=True)) == [1]
    assert here == [0.5, 1.0]


# Number formats and devices.


def test_a_device_that_is_not_there(folder: Path) -> None:
    settings_ = BackendSettings(name="x", path=str(folder), options=HFOptions(device="cuda:99"))
    from enginebay_hf.loading import load_engine

    with pytest.raises(BackendUnavailableError, match="device cuda:99 does not exist"):
        load_engine(settings_)


@pytest.mark.parametrize(
    "options",
    [
        {"device": "gpu"},
        {"device": "cuda:x"},
        {"dtype": "int8"},
        {"max_batch_size": 0},
        {"context_length": 0},
        {"threads": 0},
        {"device": "cpu", "device_map": "auto"},
        {"unknown": 1},
    ],
)
def test_refused_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        HFOptions(**options)


def test_every_option_is_described_in_a_line() -> None:
    for name, field in HFOptions.model_fields.items():
        assert field.description, name
        assert "\n" not in field.description


def test_threads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    load(folder)
    assert asked == []
    load(folder, threads=3)
    assert asked == [3]
