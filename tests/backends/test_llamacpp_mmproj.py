"""The mmproj file beside a model: found, named, wrong, damaged."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from enginebay import (
    BackendSettings,
    BackendUnavailableError,
    Engine,
    EngineBackend,
    EngineDeadError,
    Media,
    UnsupportedParameterError,
)
from enginebay_llamacpp.backend import create, register_backends
from enginebay_llamacpp.engine import LlamaCppEngine
from enginebay_llamacpp.files import find_mmproj
from enginebay_llamacpp.loading import load_engine
from enginebay_llamacpp.options import LlamaCppOptions
from enginebay_llamacpp.projector import Projector, Rows, Tile
from tests.backends.gguf_models import write_bert, write_llama
from tests.backends.llamacpp import load, refusal, request
from tests.backends.mmproj_models import (
    write_gemma3,
    write_gemma3_projector,
    write_mlp,
    write_pair,
    write_qwen2a,
)
from tests.backends.mtmd_reference import picture
from tests.engine.test_engine import AT_ONCE, until_restarted
from tests.run import Run


def modalities(engine: LlamaCppEngine) -> frozenset[str]:
    engine.close()
    return engine.info.modalities


def test_the_only_one_beside_the_model_is_found(tmp_path: Path) -> None:
    path = write_pair("llava", tmp_path)
    assert modalities(load(path)) == {"image"}
    assert modalities(load(tmp_path)) == {"image"}
    assert modalities(load(path, mmproj=False)) == frozenset()
    (tmp_path / "mmproj.gguf").rename(tmp_path / "llava-MMPROJ-f16.gguf")
    assert modalities(load(tmp_path)) == {"image"}


def test_of_several_one_must_be_named(tmp_path: Path) -> None:
    path = write_pair("llava", tmp_path)
    write_qwen2a(tmp_path / "mmproj-sound.gguf")
    for place in (path, tmp_path):
        with pytest.raises(BackendUnavailableError, match=r"mmproj-sound\.gguf, mmproj\.gguf"):
            load(place)
    assert modalities(load(path, mmproj="mmproj.gguf")) == {"image"}
    assert modalities(load(path, mmproj=str(tmp_path / "mmproj-sound.gguf"))) == {"audio"}
    assert modalities(load(path, mmproj=False)) == frozenset()


@pytest.mark.parametrize(
    ("model", "mmproj", "found"),
    [
        ("gemma-3-4b-it-Q4_K_M.gguf", "mmproj-gemma-3-4b-it-f16.gguf", True),
        ("gemma-3-4b-it-Q4_K_M.gguf", "mmproj-model-f16.gguf", True),
        ("gemma-3-4b-it-Q4_K_M.gguf", "mmproj-BF16.gguf", True),
        ("Qwen2.5-VL-7B-Instruct.i1-IQ4_XS.gguf", "Qwen2.5-VL-7B-Instruct.mmproj-Q8_0.gguf", True),
        ("gemma-3-4b-it-Q4_K_M.gguf", "mmproj-gemma-3-27b-it-f16.gguf", False),
        ("llama-3-8b-Q4_0.gguf", "mmproj-gemma-3-4b-it-f16.gguf", False),
    ],
)
def test_of_several_models_it_belongs_to_those_of_its_name(
    tmp_path: Path, model: str, mmproj: str, found: bool
) -> None:
    for name in (model, mmproj):
        (tmp_path / name).write_bytes(b"GGUF")
    assert find_mmproj(tmp_path / model) == tmp_path / mmproj  # the only model beside it
    (tmp_path / "another-Q8_0.gguf").write_bytes(b"GGUF")
    assert find_mmproj(tmp_path / model) == (tmp_path / mmproj if found else None)


def test_only_models_are_recognised(tmp_path: Path) -> None:
    seen: dict[str, Callable[[Path], bool]] = {}

    def register(name: str, create: object, options: object, **more: object) -> None:
        assert callable(more["serves"])
        seen[name] = more["serves"]

    register_backends(register)  # type: ignore[arg-type]
    path = write_pair("llava", tmp_path / "pair")
    alone = write_mlp(tmp_path / "mmproj.gguf")
    assert seen["llamacpp"](path)
    assert seen["llamacpp"](path.parent)
    assert not seen["llamacpp"](alone)
    assert not seen["llamacpp"](tmp_path)


def test_named_for_a_model_that_generates_nothing(tmp_path: Path) -> None:
    write_mlp(tmp_path / "mmproj.gguf")
    path = write_bert(tmp_path / "bert.gguf")
    assert "mmproj is for text generation" in refusal(path, mmproj="mmproj.gguf")
    load(path).close()


@pytest.mark.parametrize("option", ["missing.gguf", "notes.gguf"])
def test_a_named_file_that_is_none(tmp_path: Path, option: str) -> None:
    path = write_pair("llava", tmp_path)
    (tmp_path / "notes.gguf").write_text("notes")
    with pytest.raises(BackendUnavailableError, match=f"{option}: (there is no such|this is not)"):
        load(path, mmproj=option)


def cut(path: Path, share: float) -> Path:
    write_mlp(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    return path


WRONG = {
    "of another model": (partial(write_mlp, width=48), "n_embd = 48.*wrong mmproj"),
    "a text model": (write_llama, "cannot use it"),
    "cut in its header": (partial(cut, share=0.02), "cannot use it"),
    "cut in its weights": (partial(cut, share=0.7), "failed to seek|failed to read"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_or_damaged_file_is_refused(tmp_path: Path, kind: str) -> None:
    # MEDIA-36
    write, reason = WRONG[kind]
    path = write_llama(tmp_path / "model.gguf")
    write(tmp_path / "mmproj.gguf")
    with pytest.raises(BackendUnavailableError, match=reason) as caught:
        load(path)
    assert "`mmproj: false`" in caught.value.message
    assert modalities(load(path, mmproj=False)) == frozenset()


def test_an_mmproj_file_is_no_model(tmp_path: Path) -> None:
    assert "it is the mmproj file of a model" in refusal(write_mlp(tmp_path / "mmproj.gguf"))


async def test_one_that_ends_the_process_is_a_failed_load(tmp_path: Path) -> None:
    # MEDIA-36
    path = write_gemma3(tmp_path / "model.gguf")
    write_gemma3_projector(tmp_path / "mmproj.gguf", scale=3)  # which says 7 tokens, and makes 4
    options = LlamaCppOptions(threads=1)
    backend = create(BackendSettings(name="tiny", path=str(path), options=options))
    with pytest.raises(BackendUnavailableError, match=r"SIGABRT while checking mmproj\.gguf"):
        await backend.start()
    await backend.close()


def test_one_that_encodes_no_numbers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_pair("llava", tmp_path)
    encode = Projector.encode
    monkeypatch.setattr(Projector, "encode", lambda self, tile: encode(self, tile) * float("nan"))
    with pytest.raises(BackendUnavailableError, match="its rows are no numbers"):
        load(path)


def test_progress_never_goes_back(tmp_path: Path) -> None:
    path = write_pair("llava", tmp_path)
    said: list[tuple[str, float]] = []
    load_engine(
        BackendSettings(
            name="tiny",
            path=str(path),
            options=LlamaCppOptions(threads=1),
            report_progress=lambda stage, fraction: said.append((stage, fraction)),
        )
    ).close()
    assert [fraction for _, fraction in said] == sorted(fraction for _, fraction in said)
    stages = {stage.partition(":")[0] for stage, _ in said}
    assert {"loading the mmproj file", "checking mmproj.gguf"} < stages


def test_text_only_models_refuse_media(tmp_path: Path) -> None:
    engine = load(write_llama(tmp_path / "model.gguf"))
    with pytest.raises(UnsupportedParameterError, match="text only"):
        engine.tokenize_media(["a", picture(1)], add_special_tokens=True)
    engine.close()


def killed_while_encoding(path: Path, once: Path) -> Engine:
    """An engine whose process dies with the first item of a request, if `once` exists."""
    engine = load(path)
    encode = Projector.encode

    def deadly(projector: Projector, tile: Tile) -> Rows:
        if once.exists():
            once.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return encode(projector, tile)

    Projector.encode = deadly  # type: ignore[method-assign]  # in a process of its own
    return engine


async def generated(backend: EngineBackend, media: Media) -> list[int]:
    prompt = await backend.tokenize_media(["Look: ", media, "?"], add_special_tokens=True)
    item = replace(request(prompt.token_ids), media=prompt.spans)
    return [i async for delta in backend.generate(item) for i in delta.token_ids]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
async def test_killed_while_encoding(tmp_path: Path) -> None:
    # MEDIA-38
    path, once = write_pair("llava", tmp_path / "pair"), tmp_path / "once"
    once.touch()
    factory = partial(killed_while_encoding, path, once)
    backend = EngineBackend(factory, isolation="process", backoff=AT_ONCE)
    try:
        await backend.start()
        with pytest.raises(EngineDeadError, match="killed by SIGKILL") as caught:
            await generated(backend, picture(1))
        assert caught.value.status == 503
        await until_restarted(backend)
        said = await generated(backend, picture(1))
    finally:
        await backend.close()
    engine = load(path)
    prompt = engine.tokenize_media(["Look: ", picture(1), "?"], add_special_tokens=True)
    run = Run(engine, replace(request(prompt.token_ids), media=prompt.spans)).finish()
    assert run.token_ids() == said
    engine.close()
