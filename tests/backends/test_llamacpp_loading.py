"""From a path to a model: what may be wrong with files and options, and what a model says."""

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from demo.to_gguf import convert
from enginebay import BackendSettings, BackendUnavailableError, FreeMemory
from enginebay_llamacpp import model
from enginebay_llamacpp.cpu import has_amx, physical_cores
from enginebay_llamacpp.engine import LlamaCppEngine
from enginebay_llamacpp.loading import load_engine
from enginebay_llamacpp.options import LlamaCppOptions
from enginebay_llamacpp.runner import LlamaRunner
from tests.backends.gguf_models import (
    CONTEXT,
    VOCAB_SIZE,
    write_adapter,
    write_llama,
    write_recurrent,
)
from tests.backends.llamacpp import load, refusal, request
from tests.run import Run
from tests.support import DEMO_MODEL, REPOSITORY

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    return write_llama(path, TEMPLATE, {"temp": 0.25, "top_k": 7.0})


def answer(engine: LlamaCppEngine) -> list[int]:
    try:
        return Run(engine, request([5, 60, 7])).finish().token_ids()
    finally:
        engine.close()


def memory_of(engine: LlamaCppEngine) -> tuple[int, int, bool]:
    assert isinstance(engine._runner, LlamaRunner)
    held = engine._runner.memory
    engine.close()
    return held.slots, held.tokens, held.shares


# Files.


def test_a_missing_file(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "model.gguf")


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"<html>404</html>")
    assert "not a GGUF file" in refusal(path)


def test_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    assert "not a regular file" in refusal(tmp_path / "model.gguf")


@pytest.mark.parametrize("kept", [0.9, 0.3, 0.01])
def test_a_truncated_file(shared: Path, tmp_path: Path, kept: float) -> None:
    path = tmp_path / "model.gguf"
    content = shared.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    assert "corrupt" in refusal(path)


def test_a_folder_stands_for_the_only_model_in_it(shared: Path) -> None:
    assert answer(load(shared.parent)) == answer(load(shared))


def test_a_folder_without_a_model_or_with_several(tmp_path: Path) -> None:
    assert "backend: hf" in refusal(tmp_path)
    write_llama(tmp_path / "one.gguf")
    write_llama(tmp_path / "two.gguf")
    assert "one.gguf, two.gguf" in refusal(tmp_path)


def test_a_split_model_is_loaded_from_any_of_its_files(shared: Path, tmp_path: Path) -> None:
    write_llama(tmp_path / "model.gguf", split_max_tensors=8)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert [part.name for part in parts] == [f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    expected = answer(load(shared))
    for path in (tmp_path, *parts):
        assert answer(load(path)) == expected


def test_endings_in_capitals(shared: Path, tmp_path: Path) -> None:
    whole, split = tmp_path / "whole", tmp_path / "split"
    whole.mkdir()
    split.mkdir()
    write_llama(whole / "model.gguf").rename(whole / "MODEL.GGUF")
    write_llama(split / "model.gguf", split_max_tensors=8)
    for part in split.iterdir():
        part.rename(part.with_suffix(".GGUF"))
    expected = answer(load(shared))
    assert answer(load(whole)) == answer(load(split)) == expected


def test_a_split_model_with_a_file_missing(tmp_path: Path) -> None:
    write_llama(tmp_path / "model.gguf", split_max_tensors=8)
    (tmp_path / "model-00002-of-00003.gguf").unlink()
    assert "model-00002-of-00003.gguf is missing" in refusal(tmp_path)


def test_an_architecture_that_llama_cpp_does_not_know(shared: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(shared.read_bytes().replace(b"llama", b"lxxma"))
    assert "pip install --upgrade" in refusal(path)


def test_an_adapter_for_another_model(shared: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "lora.gguf", width=32)
    with pytest.raises(BackendUnavailableError, match="must be made for this model") as caught:
        load(shared, adapters={"other": str(adapter)})
    assert str(adapter) in caught.value.message
    with pytest.raises(BackendUnavailableError, match="no such file"):
        load(shared, adapters={"missing": "missing.gguf"})


def test_draft_models_that_do_not_go_with_the_model(shared: Path, tmp_path: Path) -> None:
    for path, problem in (
        (tmp_path / "missing.gguf", "no such file"),
        (write_recurrent(tmp_path / "recurrent.gguf"), "recurrent"),
        (tmp_path / "demo.gguf", "vocabulary"),
    ):
        if problem == "vocabulary":
            convert(DEMO_MODEL, path, "f16")
        with pytest.raises(BackendUnavailableError, match=problem) as caught:
            load(shared, draft_model=str(path))
        assert str(path) in caught.value.message


def test_recurrent_models_guess_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_recurrent(tmp_path / "model.gguf")
    expected = answer(load(path))
    assert answer(load(path, prompt_lookup=4)) == expected
    assert "speculative decoding disabled" in caplog.text


# Options.


def test_options_that_make_no_sense() -> None:
    for options in (
        {"context": 5},
        {"max_batch_size": 257},
        {"gpu_layers": -1},
        {"cache_type_k": "q2_k"},
        {"context_length": 512, "cache_tokens": 256},
        {"prompt_lookup": 4, "draft_model": "draft.gguf"},
    ):
        with pytest.raises(ValidationError):
            LlamaCppOptions.model_validate(options)


def test_every_option_is_described() -> None:
    page = (REPOSITORY / "docs" / "guides" / "llamacpp.md").read_text(encoding="utf-8")
    for name, field in LlamaCppOptions.model_fields.items():
        assert field.description
        assert f"`{name}" in page or f"  {name}:" in page, name


def test_gpu_layers_need_a_build_for_a_gpu(shared: Path) -> None:
    if model.llama.llama_supports_gpu_offload():
        pytest.skip("this build has a GPU")
    assert "gpu_layers is 3" in refusal(shared, gpu_layers=3)
    assert "gpu_layers is all" in refusal(shared, gpu_layers="all")


def test_a_context_longer_than_the_models(shared: Path) -> None:
    assert "rope_scaling" in refusal(shared, context_length=2 * CONTEXT)
    engine = load(shared, context_length=2 * CONTEXT, rope_scaling="linear", rope_freq_scale=0.5)
    assert engine.info.context_length == 2 * CONTEXT
    stretched = answer(engine)
    assert stretched != answer(load(shared))


def test_the_cache_is_as_large_as_asked(shared: Path) -> None:
    sizes = {"max_batch_size": 4, "context_length": 256}
    assert memory_of(load(shared, kv_unified=True, cache_tokens=512, **sizes)) == (8, 512, True)
    assert memory_of(load(shared, kv_unified=False, **sizes)) == (4, 1024, False)
    problem = refusal(shared, kv_unified=False, cache_tokens=512, **sizes)
    assert "leaves 128 tokens each" in problem


def test_little_memory_makes_the_context_shorter(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_bytes = 2 * 2 * 32 * 2  # layers, keys and values, one head of 32, f16
    monkeypatch.setattr(model, "free_memory", lambda gpu: FreeMemory(2 * 300 * token_bytes))
    engine = load(shared, mmap=False)
    assert engine.info.context_length == 300
    engine.close()
    engine = load(shared)
    assert engine.info.context_length == 256
    engine.close()
    engine = load(shared, context_length=CONTEXT)
    assert engine.info.context_length == CONTEXT
    engine.close()


@pytest.mark.parametrize("kind", ["f32", "bf16", "q8_0", "q4_0"])
def test_cache_types(shared: Path, kind: str) -> None:
    engine = load(shared, cache_type_k=kind, cache_type_v=kind)
    assert len(answer(engine)) == 12


def test_quantized_values_need_flash_attention(shared: Path) -> None:
    assert "cache_type_v" in refusal(shared, cache_type_v="q8_0", flash_attention="off")


def test_options_that_change_nothing_but_speed(shared: Path) -> None:
    expected = answer(load(shared))
    for options in (
        {"flash_attention": "off"},
        {"mmap": False},
        {"repack": False},
        {"check_tensors": True},
        {"threads": 2, "threads_batch": 1},
        {"batch_tokens": 64, "ubatch_tokens": 16, "prefill_tokens": 8},
        {"tensor_split": [1.0], "split_mode": "row", "main_gpu": 0},
    ):
        assert answer(load(shared, **options)) == expected, options


def test_metadata_can_be_overridden(shared: Path) -> None:
    engine = load(
        shared, override_kv={"llama.context_length": 128, "tokenizer.ggml.add_bos_token": False}
    )
    assert engine.info.context_length == 128
    assert engine.tokenize("the", add_special_tokens=True) == [261]
    engine.close()


# What a model says of itself.


def test_named_chat_templates(tmp_path: Path) -> None:
    named = [
        {"name": "default", "template": TEMPLATE},
        {"name": "tool_use", "template": "tools" * 100},
    ]
    engine = load(write_llama(tmp_path / "model.gguf", named))
    info = engine.info
    assert (info.chat_template, info.chat_templates) == (TEMPLATE, {"tool_use": "tools" * 100})
    engine.close()


def test_info(shared: Path) -> None:
    engine = load(shared)
    info = engine.info
    assert (info.context_length, info.vocab_size) == (CONTEXT, VOCAB_SIZE)
    assert info.chat_template == TEMPLATE
    assert info.special_tokens == {
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "pad_token": "<|pad|>",
    }
    assert info.defaults == {"temperature": 0.25, "top_k": 7}
    assert info.adapters == ()
    engine.close()


# Progress.


def test_progress_rises_to_the_end(shared: Path) -> None:
    seen: list[tuple[str, float]] = []
    settings = BackendSettings(
        name="tiny",
        path=str(shared),
        options={"threads": 1},
        report_progress=lambda *entry: seen.append(entry),
    )
    load_engine(settings).close()
    fractions = [fraction for _, fraction in seen]
    assert fractions == sorted(fractions)
    assert len(fractions) > 4
    assert seen[-1] == ("ready", 1.0)


def test_loading_stops_when_the_listener_says_so(shared: Path) -> None:
    seen: list[float] = []

    def cancel(stage: str, fraction: float) -> None:
        seen.append(fraction)
        if len(seen) == 3:
            raise KeyboardInterrupt

    settings = BackendSettings(name="tiny", path=str(shared), report_progress=cancel)
    with pytest.raises(KeyboardInterrupt):
        load_engine(settings)
    assert len(seen) == 3


def test_the_log_says_how_large_the_cache_is(
    shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    load(shared, context_length=256, max_batch_size=2).close()
    lines = [record.getMessage() for record in caplog.records]
    line = next(line for line in lines if "KV cache" in line)
    assert "2 conversations of 256 tokens at once" in line
    assert "KV cache of 512 tokens" in line


# The processor.


@pytest.mark.parametrize(("file_type", "repacks"), [("f16", True), ("q8_0", False)])
def test_quantized_weights_are_not_repacked_for_amx(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    file_type: str,
    repacks: bool,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(model, "has_amx", lambda: True)
    path = tmp_path / "model.gguf"
    convert(DEMO_MODEL, path, file_type)
    assert len(answer(load(path, context_length=256))) == 12
    assert ("not repacked" in caplog.text) != repacks


def test_amx_is_read_from_the_flags(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    assert not has_amx(info)
    info.write_text("flags : fpu avx512f amx_tile amx_int8 flush_l1d\n")
    assert has_amx(info)
    info.write_text("flags : fpu avx512f flush_l1d\n")
    assert not has_amx(info)


def test_hardware_threads_of_one_core_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    for cpu, siblings in enumerate(("0-1", "0-1", "2-3", "2-3")):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
    assert physical_cores(tmp_path, tmp_path / "cpu.max") == 2
    (tmp_path / "cpu.max").write_text("100000 100000")
    assert physical_cores(tmp_path, tmp_path / "cpu.max") == 1
    (tmp_path / "cpu.max").write_text("max 100000")
    assert physical_cores(tmp_path / "unknown", tmp_path / "cpu.max") == 4
