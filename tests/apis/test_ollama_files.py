"""What Ollama's clients are told of models that were never loaded: what their files say."""

import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.config.schema import Config
from enginebay.models.files.gguf_header import gguf_header
from enginebay.plugins import Plugins
from tests.backends.gguf_models import CONTEXT, WIDTH, write_bert, write_llama
from tests.support import DEMO_MODEL, SEEING_MODEL, Server, serve

CALLING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
)


@contextmanager
def served(backend: str, *paths: Path, **model: Any) -> Iterator[Server]:
    """Models that nobody has asked for yet, each with the name of its file or folder."""
    models = [
        {"name": path.name, "path": str(path), "backend": backend, "load": "request", **model}
        for path in paths
    ]
    with serve(Config.model_validate({"models": models}), Plugins()) as server:
        yield server


def tags(server: Server) -> dict[str, dict[str, Any]]:
    models = server.http.get("/api/tags").json()["models"]
    return {model["name"]: model for model in models}


def shown(server: Server, name: str) -> dict[str, Any]:
    answer = server.http.post("/api/show", json={"model": name})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def weights_of(folder: Path) -> int:
    """As safetensors counts them."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "numpy") as file:
        return sum(file.get_tensor(name).size for name in file.keys())  # noqa: SIM118


@pytest.mark.parametrize("folder", [DEMO_MODEL, SEEING_MODEL], ids=["text", "pictures"])
def test_a_checkpoint(folder: Path) -> None:
    # OLL-13
    family = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    with served("hf", folder) as server:
        card, about = tags(server)[folder.name], shown(server, folder.name)
    weights = weights_of(folder)
    assert card["details"] == about["details"]
    assert card["details"].pop("parameter_size") == f"{weights / 1e6:.2f}M"
    assert card["details"] == {
        "parent_model": "",
        "format": "safetensors",
        "family": family,
        "families": [family],
        "quantization_level": "F16",
    }
    assert card["size"] == (folder / "model.safetensors").stat().st_size
    assert about["model_info"] == {
        "general.architecture": family,
        "general.basename": folder.name,
        "general.parameter_count": weights,
        f"{family}.context_length": 4096,
        f"{family}.embedding_length": 256,
    }
    assert about["template"] == (folder / "chat_template.jinja").read_text(encoding="utf-8")
    assert card["capabilities"] == about["capabilities"]
    assert card["capabilities"][0] == "completion"


def test_a_gguf_file(tmp_path: Path) -> None:
    # OLL-13
    pytest.importorskip("llama_cpp")
    file = tmp_path / "tiny.gguf"
    write_llama(file, template=CALLING)
    with served("llamacpp", file) as server:
        about, card = shown(server, "tiny.gguf"), tags(server)["tiny.gguf"]
        assert about["capabilities"] == card["capabilities"] == ["completion", "tools"]
        info = about["model_info"]
        assert info["general.architecture"] == "llama"
        assert info["llama.context_length"] == CONTEXT
        assert info["llama.embedding_length"] == WIDTH
        assert info["general.parameter_count"] == gguf_header(file).parameters > WIDTH
        assert not any(name.startswith("tokenizer.") for name in info)
        assert about["template"] == CALLING
        assert card["size"] == file.stat().st_size
        assert card["details"]["format"] == "gguf"
        assert card["details"]["family"] == "llama"
        loaded = server.http.post("/api/generate", json={"model": "tiny.gguf"})
        assert loaded.json()["done_reason"] == "load", loaded.text
        assert shown(server, "tiny.gguf")["capabilities"] == about["capabilities"]


def test_a_gguf_file_that_only_embeds(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    write_bert(tmp_path / "bert.gguf")
    with served("llamacpp", tmp_path / "bert.gguf") as server:
        assert tags(server)["bert.gguf"]["capabilities"] == ["embedding"]


def test_what_the_config_says_comes_first(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    write_llama(tmp_path / "a.gguf", template=CALLING)
    with served("llamacpp", tmp_path / "a.gguf", tools="none", reasoning="think") as server:
        assert tags(server)["a.gguf"]["capabilities"] == ["completion", "thinking"]


def test_digests_are_stable_and_of_one_model(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    files = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for file in files:
        write_llama(file)
    digests = []
    for _ in range(2):
        with served("llamacpp", *files) as server:
            digests.append([card["digest"] for card in tags(server).values()])
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 2
    with served("llamacpp", *files) as server:
        before = tags(server)
        write_llama(files[0], template=CALLING)
        after = tags(server)
    assert after["a.gguf"]["digest"] != before["a.gguf"]["digest"]
    assert after["b.gguf"] == before["b.gguf"]


@pytest.mark.parametrize(
    ("backend", "content"), [("llamacpp", b"GGUF\x03"), ("llamacpp", b""), ("hf", None)]
)
def test_files_that_say_nothing(tmp_path: Path, backend: str, content: bytes | None) -> None:
    path = tmp_path / "x.gguf"
    if content is not None:
        path.write_bytes(content)
    with served(backend, path) as server:
        card, about = tags(server)["x.gguf"], shown(server, "x.gguf")
    assert card["details"]["family"] == ""
    assert card["capabilities"] == []
    assert about["model_info"] == {"general.architecture": "unknown", "general.basename": "x.gguf"}


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": b"[]"},
        {"config.json": b"{"},
        {"config.json": b'{"model_type": "\\ud800", "architectures": [3], "dtype": []}'},
        {"config.json": b"{}", "model.safetensors": b"\2" + 7 * b"\0" + b"[]"},
        {"config.json": b"{}", "model.safetensors": b"\10" + 7 * b"\0" + b'{"a": 3}'},
        {"config.json": b"{}", "model.safetensors": b"\xff" * 9},
        {"config.json": b"{}", "tokenizer_config.json": b'{"chat_template": [1]}'},
        {"config.json": b'{"architectures": ["XForCausalLM"]}', "chat_template.jinja": b"{% x %}"},
    ],
)
def test_folders_that_hold_anything(tmp_path: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with served("hf", tmp_path) as server:
        assert set(tags(server)[tmp_path.name]["capabilities"]) <= {"completion"}
        assert shown(server, tmp_path.name)["template"] == ""


def test_the_template_of_the_config_is_the_one_that_is_shown() -> None:
    with served("hf", DEMO_MODEL, chat_template="chatml") as server:
        assert "<|im_start|>" in shown(server, DEMO_MODEL.name)["template"]


@given(st.data())
def test_a_damaged_header_is_no_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    write_llama(folder / "whole.gguf", template=CALLING)
    content = bytearray((folder / "whole.gguf").read_bytes())
    for at in data.draw(st.lists(st.integers(0, 2000), max_size=5)):
        content[at] = data.draw(st.integers(0, 255))
    file = folder / "x.gguf"
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(ValueError, OSError):
        gguf_header(file)


@pytest.mark.parametrize(
    "header",
    [
        struct.pack("<QQ", 0, 1 << 40),
        struct.pack("<QQ", 1 << 40, 0),
        struct.pack("<QQ", 0, 1) + struct.pack("<Q", 1 << 30),
        struct.pack("<QQ", 0, 1) + struct.pack("<QcIIQ", 1, b"a", 9, 8, 1 << 40),
    ],
    ids=["values", "tensors", "text", "texts"],
)
def test_numbers_that_cannot_be_are_not_counted_up_to(tmp_path: Path, header: bytes) -> None:
    """However large the file is that they are in."""
    file = tmp_path / "x.gguf"
    with file.open("wb") as target:
        target.write(b"GGUF" + struct.pack("<I", 3) + header)
        target.truncate(1 << 40)
    with pytest.raises(ValueError, match="more than there can be"):
        gguf_header(file)


@pytest.mark.parametrize(("length", "wrong"), [(-1, "cut short"), (1 << 40, "too long")])
def test_a_file_has_the_length_that_its_header_says(
    tmp_path: Path, length: int, wrong: str
) -> None:
    """Also one whose blocks are holes, which takes no room and minutes to read."""
    file = write_llama(tmp_path / "x.gguf")
    whole = file.stat().st_size
    gguf_header(file)
    os.truncate(file, whole + length)
    message = f"{wrong}: its header says {whole} bytes, it has {whole + length}"
    with pytest.raises(ValueError, match=message):
        gguf_header(file)


def test_sizes_of_tensors_are_those_of_ggml(tmp_path: Path) -> None:
    for kind, (weights, size) in gguf.GGML_QUANT_SIZES.items():
        if kind.name == "Q8_1":  # of activations; no file has it
            continue
        file = tmp_path / f"{kind.name}.gguf"
        header = struct.pack("<4sIQQ", b"GGUF", 3, 1, 0)
        header += struct.pack("<QcIQIQ", 1, b"t", 1, 3 * weights, kind, 0)
        file.write_bytes(header.ljust(64, b"\0") + bytes(3 * size))
        assert [tensor.bytes for tensor in gguf_header(file).tensors] == [3 * size]
        os.truncate(file, 64 + 3 * size - 1)
        with pytest.raises(ValueError, match="cut short"):
            gguf_header(file)
