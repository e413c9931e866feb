"""From a folder to a model, or to an error that says what to do."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.utils import logging as transformers_logging

import backends
from backends.hf import placement
from backends.hf.checkpoint import Checkpoint
from backends.hf.info import sampling_defaults
from backends.hf.longest_token import UNBOUNDED, longest_token
from backends.hf.options import HFOptions
from backends.hf.progress import weights_progress
from core.registers import BackendRegister
from enginebay import (
    BackendSettings,
    BackendUnavailableError,
    InvalidRequestError,
    SamplingParams,
)
from tests.backends.tiny import CHAT_TEMPLATE, VOCAB_SIZE, Run, load, make_tokenizer, request

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    """A model's folder to damage."""
    return copytree(tiny_llama, tmp_path / "model")


def edit(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**content, **changes}))


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(BackendUnavailableError) as caught:
        load(folder, **options)
    assert str(folder) in caught.value.message
    return caught.value.message


# The plugin.


def test_the_plugin_registers_hf() -> None:
    register = BackendRegister()
    backends.register_backends(register)
    assert list(register) == ["hf"]
    assert register["hf"].options is HFOptions


async def test_a_registered_backend_starts_and_answers(tiny_llama: Path) -> None:
    register = BackendRegister()
    backends.register_backends(register)
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


def test_without_the_library_starting_says_what_to_install(tiny_llama: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "sys.modules['torch'] = None\n"
        "import backends\n"
        "from enginebay import BackendSettings, BackendUnavailableError\n"
        f"backend = backends.create_hf(BackendSettings(name='x', path={str(tiny_llama)!r}))\n"
        "try:\n"
        "    asyncio.run(backend.start())\n"
        "except BackendUnavailableError as error:\n"
        "    print(error.message)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert "pip install 'enginebay[hf]'" in done.stdout


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
    assert info.unsupported == frozenset()
    assert engine._eos_token_ids == {1}


def test_the_default_of_several_chat_templates(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    templates = [
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "plain"},
    ]
    edit(folder / "tokenizer_config.json", chat_template=templates)
    assert load(folder).info.chat_template == "plain"


def test_context_length_may_be_shortened_and_not_stretched(folder: Path) -> None:
    assert load(folder, context_length=100).info.context_length == 100
    assert "257 is more than the 256" in refusal(folder, context_length=257)


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


# The longest token.


def pipeline_of(tokenizer: RustTokenizer) -> dict[str, Any]:
    return json.loads(tokenizer.to_str())


@settings(max_examples=200, deadline=None)
@given(st.text() | st.text(st.characters(categories=["Mn", "Lo", "Zs"])))
def test_longest_token_bounds_any_text(text: str) -> None:
    for normalizer, pre_tokenizer in (
        (None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
        (normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=True)),
        (normalizers.NFKC(), pre_tokenizers.ByteLevel(add_prefix_space=False)),
    ):
        tokenizer = make_tokenizer().backend_tokenizer
        tokenizer.normalizer = normalizer or normalizers.Sequence([])
        tokenizer.pre_tokenizer = pre_tokenizer
        longest = longest_token(tokenizer.get_vocab(), pipeline_of(tokenizer))
        assert longest < UNBOUNDED
        assert len(text) <= longest * len(tokenizer.encode(text).ids)


def unknown_fusing() -> RustTokenizer:
    return RustTokenizer(models.BPE({"a": 0, "?": 1}, [], unk_token="?", fuse_unk=True))


def whitespace_splitting() -> RustTokenizer:
    tokenizer = RustTokenizer(models.BPE({"a": 0}, [], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def stripping() -> RustTokenizer:
    tokenizer = RustTokenizer(models.BPE({"a": 0}, [], byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    return tokenizer


def folding() -> RustTokenizer:
    tokenizer = RustTokenizer(models.BPE({"a": 0}, [], byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace("   ", " ")
    return tokenizer


@pytest.mark.parametrize("make", [unknown_fusing, whitespace_splitting, stripping, folding])
def test_no_bound_where_text_may_vanish(make: Callable[[], RustTokenizer]) -> None:
    tokenizer = make()
    assert longest_token(tokenizer.get_vocab(), pipeline_of(tokenizer)) == UNBOUNDED


def test_longest_token_of_a_sentencepiece_like_vocabulary() -> None:
    vocabulary = {"▁": 0, "a": 1, "▁a": 2, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}}
    tokenizer = RustTokenizer(models.BPE(vocabulary, [("▁", "a")], byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    assert longest_token(vocabulary, pipeline_of(tokenizer)) == len("<0x00>")


# Tokens and text.


def test_tokenizer_of_an_engine(tiny_llama: Path) -> None:
    engine = load(tiny_llama)
    text = "the <tool_call> fox , don't .<|eos|>"
    token_ids = engine.tokenize(text, add_special_tokens=False)
    assert {3, 1} <= set(token_ids)
    assert engine.detokenize(token_ids) == text
    assert engine.detokenize([]) == ""


def test_truncation_and_padding_of_a_tokenizer_file_are_off(folder: Path) -> None:
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    edit(folder / "tokenizer.json", truncation=truncation)
    engine = load(folder)
    assert len(engine.tokenize("x y z " * 20, add_special_tokens=True)) > 60


def test_tokenizing_on_many_threads_beside_steps(tiny_llama: Path) -> None:
    engine = load(tiny_llama)
    text = "the quick brown fox " * 50
    expected = engine.tokenize(text, add_special_tokens=True)
    results: list[bool] = []

    def work() -> None:
        for _ in range(20):
            token_ids = engine.tokenize(text, add_special_tokens=True)
            results.append(token_ids == expected and engine.detokenize(token_ids) == text)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    Run(engine, request([5, 6, 7], max_tokens=50)).finish()
    for thread in threads:
        thread.join()
    assert results == [True] * 80


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
    from backends.hf.loading import load_engine

    load_engine(settings_)
    fractions = [fraction for _, fraction in reports]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0, 1)
    stages = list(dict.fromkeys(stage for stage, _ in reports))
    assert stages == ["reading tokenizer", "loading weights", "checking the model", "ready"]
    assert sum(stage == "loading weights" for stage, _ in reports) > 10
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


@pytest.mark.parametrize(
    ("stored", "asked", "hardware", "expected"),
    [
        (torch.float32, "auto", True, torch.float32),
        (torch.bfloat16, "auto", True, torch.bfloat16),
        (torch.bfloat16, "auto", False, torch.float32),
        (torch.float16, "auto", True, torch.float32),
        (torch.float32, "bfloat16", False, torch.bfloat16),
        (torch.bfloat16, "float32", True, torch.float32),
    ],
)
def test_dtype_on_a_cpu(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    stored: torch.dtype,
    asked: Any,
    hardware: bool,
    expected: torch.dtype,
) -> None:
    monkeypatch.setattr(placement, "cpu_has_bfloat16", lambda: hardware)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=stored)
    model.save_pretrained(folder)
    engine = load(folder, dtype=asked)
    assert engine._runner.dtype == expected
    assert len(Run(engine, request([5, 6, 7])).finish().token_ids()) == 12


def test_dtype_on_a_gpu_is_the_checkpoints(folder: Path) -> None:
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).save_pretrained(folder)
    checkpoint = Checkpoint(folder)
    chosen = placement.choose_dtype(checkpoint, HFOptions(), torch.device("cuda"))
    assert chosen == torch.float16
    checkpoint.config["quantization_config"] = {}
    assert placement.choose_dtype(checkpoint, HFOptions(), torch.device("cuda")) is None


def test_a_device_that_is_not_there(folder: Path) -> None:
    settings_ = BackendSettings(name="x", path=str(folder), options=HFOptions(device="cuda:99"))
    from backends.hf.loading import load_engine

    with pytest.raises(BackendUnavailableError, match="device cuda:99 is not there"):
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


# What cannot be loaded.


def test_no_such_folder(tmp_path: Path) -> None:
    assert "no such folder" in refusal(tmp_path / "missing")


def test_a_file(folder: Path) -> None:
    assert "is a file" in refusal(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (["config.json"], "no config.json"),
        (["model.safetensors"], "no weights"),
        (["tokenizer.json", "tokenizer_config.json"], "no tokenizer"),
    ],
)
def test_missing_files(folder: Path, files: list[str], reason: str) -> None:
    for name in files:
        (folder / name).unlink()
    assert reason in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("content", ["{not json", "[]", "\ufeff\x00"])
def test_damaged_json(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    assert f"{name} is damaged" in refusal(folder)


def test_a_damaged_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer cannot be read" in refusal(folder)


@pytest.mark.parametrize("size", [0, 5, 100, -1, -5000])
def test_truncated_weights(folder: Path, size: int) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:size])
    assert "model.safetensors is damaged" in refusal(folder)
    assert "download it again" in refusal(folder)


def test_weights_that_are_something_else(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"<html>404 not found, said the proxy</html>")
    assert "model.safetensors is damaged" in refusal(folder)


def test_a_missing_shard(folder: Path) -> None:
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert len(Run(load(folder), request([5, 6])).finish().token_ids()) == 12
    shards[1].unlink()
    assert f"{shards[1].name} is missing" in refusal(folder)


def test_weights_without_a_tensor(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert "lack 1 tensors of a language model, model.norm.weight" in refusal(folder)


def test_weights_of_another_size(folder: Path) -> None:
    edit(folder / "config.json", intermediate_size=64)
    assert "transformers cannot load it" in refusal(folder)


def test_an_unknown_architecture(folder: Path) -> None:
    edit(folder / "config.json", model_type="llama99")
    assert "does not understand its config.json (model_type 'llama99')" in refusal(folder)


def test_a_model_that_brings_its_own_code(folder: Path) -> None:
    edit(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.OwnConfig"})
    assert "trust_remote_code: true" in refusal(folder)


def test_an_encoder_decoder(folder: Path) -> None:
    small = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    T5ForConditionalGeneration(T5Config(vocab_size=VOCAB_SIZE, **small)).save_pretrained(folder)
    assert "T5ForConditionalGeneration is not a causal language model" in refusal(folder)


def test_an_encoder_that_looks_both_ways(folder: Path) -> None:
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=VOCAB_SIZE, intermediate_size=16, initializer_range=0.2, **small)
    BertLMHeadModel(config).save_pretrained(folder)
    assert "BertLMHeadModel is not a causal language model" in refusal(folder)


def test_too_little_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = 4 * sum(count for _, count in Checkpoint(folder).tensors)
    monkeypatch.setattr(placement, "free_memory", lambda device: needed - 1)
    assert "memory are free on cpu" in refusal(folder)
    monkeypatch.setattr(placement, "free_memory", lambda device: needed)
    load(folder)


def test_memory_that_runs_out_while_loading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate 20 GiB")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)
    assert "not enough memory" in refusal(folder)


def test_free_memory_is_the_least_of_host_and_container(tmp_path: Path) -> None:
    assert placement._container_memory(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("300\n")
    (tmp_path / "memory.stat").write_text("anon 200\ninactive_file 100\n")
    assert placement._container_memory(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    assert placement._container_memory(tmp_path) == 1000 - 300 + 100
    free = placement.free_memory(torch.device("cpu"))
    assert free is None or free > 0


def test_unknown_tokens_are_refused_and_not_run(tiny_llama: Path) -> None:
    with pytest.raises(InvalidRequestError):
        load(tiny_llama).add_request(request([VOCAB_SIZE]))
