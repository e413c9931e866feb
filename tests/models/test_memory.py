"""What the operating system says of memory."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

from enginebay import Backend, EngineBackend
from enginebay.config.schema import Config
from enginebay.contract.backend_settings import BackendSettings
from enginebay.models.loading.memory import SystemMeter, size_of_files
from enginebay.models.registry import Models
from enginebay.testing import ScriptedEngine
from tests.support import plugins_with

MIB = 2**20


def test_a_process_and_its_children() -> None:
    child = "held = bytearray(b'x') * (50 << 20); print(flush=True); input()"
    parent = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", parent], **pipes) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        use = SystemMeter().of_process(process.pid)
        process.stdin.write(b"\n")
        process.stdin.close()
    assert use
    assert 50 * MIB < use.ram < 500 * MIB
    assert SystemMeter().of_process(process.pid) is None


def test_this_process_is_measured_without_those_of_its_engines() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        use = SystemMeter().of_process(os.getpid())
        assert process.stdin
        process.stdin.write(b"\n")
        process.stdin.close()
    assert use
    assert use.ram <= psutil.Process().memory_info().rss + 100 * MIB
    assert SystemMeter().total().ram == psutil.virtual_memory().total


def test_the_size_of_a_model_on_disk(tmp_path: Path) -> None:
    assert size_of_files(str(tmp_path / "nothing")) == 0
    (tmp_path / "a.safetensors").write_bytes(b"12345")
    (tmp_path / "b.safetensors").write_bytes(b"123")
    (tmp_path / "notes.txt").write_bytes(b"1")
    assert size_of_files(str(tmp_path)) == 8
    assert size_of_files(str(tmp_path / "a.safetensors")) == 5


def test_all_parts_of_a_file_count(tmp_path: Path) -> None:
    for number, size in enumerate((3, 4), 1):
        (tmp_path / f"m-q4-{number:05}-of-00002.gguf").write_bytes(b"x" * size)
    (tmp_path / "m-q8-00001-of-00001.gguf").write_bytes(b"x")
    assert size_of_files(str(tmp_path / "m-q4-00001-of-00002.gguf")) == 7


class Large(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__(["ok"])
        self.held = bytearray(b"x") * (100 * MIB)


def create(settings: BackendSettings) -> Backend:
    return EngineBackend(Large, isolation="process")


async def test_an_engine_in_a_process_of_its_own() -> None:
    model = {"name": "large", "backend": "large", "path": ".", "load": "request"}
    config = Config.model_validate({"models": [model]})
    models = Models(config, plugins_with(large=create), lambda *_: None)
    try:
        large = models.find("large")
        async with models.lease(models.look_up("large")):
            assert large.memory
            assert 100 * MIB < large.memory.ram < 1024 * MIB
        await models.unload(large)
        assert large.memory is None
    finally:
        await models.close()
