"""Which folders exllamav2 reads: EXL2, GPTQ and plain safetensors, of any names."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from enginebay import BackendUnavailableError
from enginebay_exllamav2.folder import ExLlamaV2Checkpoint
from tests.backends.exllamav2_models import change_config
from tests.support import DEMO_MODEL

EXL2 = {"quant_method": "exl2", "version": "0.3.2", "bits": 4.65, "head_bits": 6}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The demo model's folder with other weights, a few numbers."""
    for file in DEMO_MODEL.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, tmp_path)
    return tmp_path


def write_weights(folder: Path, *names: str) -> None:
    for name in names:
        save_file({name: torch.zeros(4, dtype=torch.float16)}, folder / name)


def test_an_exl2_folder_has_files_of_its_own_and_an_index_of_others(folder: Path) -> None:
    change_config(folder, quantization_config=EXL2)
    write_weights(folder, "output-00002-of-00002.safetensors", "output-00001-of-00002.safetensors")
    index = '{"weight_map": {"lm_head.weight": "model-00001-of-00004.safetensors"}}'
    (folder / "model.safetensors.index.json").write_text(index)
    checkpoint = ExLlamaV2Checkpoint(folder)
    checkpoint.check()
    names = [file.name for file in checkpoint.weight_files]
    assert names == ["output-00001-of-00002.safetensors", "output-00002-of-00002.safetensors"]
    assert checkpoint.weights == "exl2"
    assert len(checkpoint.tensors) == 2


def test_gptq_weights_may_have_any_name(folder: Path) -> None:
    change_config(folder, quantization_config=GPTQ)
    write_weights(folder, "gptq_model-4bit-128g.safetensors")
    checkpoint = ExLlamaV2Checkpoint(folder)
    checkpoint.check()
    assert checkpoint.weights == "gptq"
    assert checkpoint.stored_bytes > 0


def test_a_plain_folder_is_read_by_its_index(folder: Path) -> None:
    write_weights(folder, "model-00001-of-00002.safetensors")
    files = ["model-00001-of-00002.safetensors", "model-00002.safetensors"]
    index = {"weight_map": {"a": files[0], "b": files[1]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BackendUnavailableError, match=r"model-00002\.safetensors is missing"):
        ExLlamaV2Checkpoint(folder).check()


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        (
            {"quant_method": "awq", "bits": 4},
            "quantized by awq, .*these, or use the backend hf$",
        ),
        ({"quant_method": "exl3"}, "quantized by exl3, and exllamav2 reads EXL2.*in one of these$"),
        ({"bits": 4}, "quantized by an unnamed method"),
        ({"quant_method": 4}, "quantized by an unnamed method"),
        ({**GPTQ, "bits": 8}, "GPTQ weights have 8 bits, and exllamav2 reads 4"),
    ],
)
def test_other_quantizations_are_refused(
    folder: Path, quantization: dict[str, Any], message: str
) -> None:
    change_config(folder, quantization_config=quantization)
    write_weights(folder, "model.safetensors")
    with pytest.raises(BackendUnavailableError, match=message):
        ExLlamaV2Checkpoint(folder).check()


def test_a_folder_without_tokenizer_json_is_refused(folder: Path) -> None:
    write_weights(folder, "model.safetensors")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").touch()
    with pytest.raises(BackendUnavailableError, match=r"no tokenizer\.json, which exllamav2"):
        ExLlamaV2Checkpoint(folder).check()


def test_weights_that_are_no_safetensors_are_refused(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"weights")
    with pytest.raises(BackendUnavailableError, match="not safetensors"):
        ExLlamaV2Checkpoint(folder).check()


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    change_config(folder, quantization_config=EXL2)
    with pytest.raises(BackendUnavailableError, match="no weights"):
        ExLlamaV2Checkpoint(folder).check()


def test_damaged_weights_are_named(folder: Path) -> None:
    change_config(folder, quantization_config=EXL2)
    write_weights(folder, "output.safetensors")
    content = (folder / "output.safetensors").read_bytes()
    (folder / "output.safetensors").write_bytes(content[:-2])
    with pytest.raises(BackendUnavailableError, match=r"output\.safetensors is damaged"):
        ExLlamaV2Checkpoint(folder).check()
