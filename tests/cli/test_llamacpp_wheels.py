"""REAL-11: how `start.py` installs llama-cpp-python, from a local index of wheels."""

import functools
import http.server
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import llamacpp_wheels
from enginebay_llamacpp.bindings import lacking
from llamacpp_wheels import Gpus
from tests.cli.llama_cpp_wheel import write_source, write_wheel
from tests.cli.test_start import Result, start
from tests.cli.test_start import project as project

UNREACHABLE = "http://127.0.0.1:1"
BUILT = "import llama_cpp, importlib.metadata; print(llama_cpp.built)"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def wheels(project: Path, tmp_path: Path) -> Iterator[str]:
    """An index over HTTP with one wheel for CPUs; the project has installed nothing."""
    shutil.rmtree(project / "cache", ignore_errors=True)
    for site in (project / ".venv").glob("[lL]ib/**/site-packages"):
        for path in (*site.glob("llama_cpp*"), *site.glob("__pycache__/llama_cpp.*")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (project / ".venv" / "enginebay-installed.json").unlink(missing_ok=True)
    write_wheel(tmp_path / "cpu" / "llama-cpp-python")
    write_source(tmp_path / "sources")
    handler = functools.partial(Quiet, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def install(project: Path, sources: Path, index: str, **variables: str) -> Result:
    """`start.py install llamacpp`, with sources to compile and this index of wheels."""
    sources_and_index = {
        "PIP_FIND_LINKS": str(sources / "sources"),
        "ENGINEBAY_LLAMACPP_WHEELS": index,
        "ENGINEBAY_LLAMACPP": "",
    }
    return start(project, "install", "llamacpp", variables=sources_and_index | variables)


def built(project: Path) -> str:
    return start(project, "python", "-c", BUILT).stdout.splitlines()[-1]


def test_a_wheel_that_fits(project: Path, tmp_path: Path, wheels: str) -> None:
    result = install(project, tmp_path, wheels)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"Looking for a wheel of llama-cpp-python==9.9 at {wheels}/cpu/" in result.stdout
    assert "Installed the wheel (cpu)." in result.stdout
    assert "Compiling" not in result.stdout
    assert built(project) == "prebuilt"
    # a build that the environment asks for replaces it, once
    for variables in ({"ENGINEBAY_LLAMACPP": "compile"}, {"CMAKE_ARGS": "-DGGML_CUDA=on"}):
        forced = install(project, tmp_path, wheels, **variables)
        assert "Compiling llama.cpp on this machine." in forced.stdout, forced.stdout
        assert "Looking for" not in forced.stdout
        assert built(project) == "compiled"
        assert install(project, tmp_path, wheels, **variables).stdout == ""
    assert install(project, tmp_path, wheels).stdout == ""
    assert "wheel (cpu)" in install(project, tmp_path, wheels, ENGINEBAY_LLAMACPP="cpu").stdout
    assert built(project) == "prebuilt"
    refused = install(project, tmp_path, wheels, ENGINEBAY_LLAMACPP="cu999")
    assert refused.stderr == ("ENGINEBAY_LLAMACPP=cu999: no wheel could be installed: see above.\n")


def test_an_index_that_cannot_be_reached(project: Path, tmp_path: Path, wheels: str) -> None:
    result = install(project, tmp_path, UNREACHABLE)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "No wheel fits this machine (cpu), or pip cannot reach that address." in result.stdout
    said = result.stdout.splitlines()
    began = next(n for n, line in enumerate(said) if line.startswith("Compiling llama.cpp"))
    assert "minutes (processor cores: " in said[began]
    progress = [line for line in said if line.startswith("compiled ")]
    assert progress == [f"compiled {4 * tenth} of 40 files" for tenth in range(1, 11)]
    assert built(project) == "compiled"


def test_a_build_in_the_cache_of_pip(project: Path, tmp_path: Path, wheels: str) -> None:
    """A machine that has compiled before does not look for a wheel."""
    assert "Compiling" in install(project, tmp_path, UNREACHABLE).stdout
    for path in (project / ".venv").glob("[lL]ib/**/site-packages/llama_cpp*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (project / ".venv" / "enginebay-installed.json").unlink()
    result = install(project, tmp_path, wheels)
    assert result.returncode == 0
    assert "Looking for" not in result.stdout
    assert "Compiling" not in result.stdout
    assert built(project) == "compiled"


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_a_wheel_for_another_processor(project: Path, tmp_path: Path, wheels: str) -> None:
    crash = f"import os; os.kill(os.getpid(), {signal.SIGILL.value})"
    write_wheel(tmp_path / "cpu" / "llama-cpp-python", start=crash)
    result = install(project, tmp_path, wheels)
    assert result.returncode == 0, result.stdout + result.stderr
    said = "The wheel (cpu) does not work on this machine: its process was ended by SIGILL"
    assert said in result.stdout
    assert "Compiling llama.cpp" in result.stdout
    assert built(project) == "compiled"


@pytest.mark.parametrize(
    ("driver", "capabilities", "indexes"),
    [
        (134, (90,), ["cu130", "cu125"]),
        (130, (75, 120), ["cu130", "cu125"]),
        (130, (61,), ["cu125", "cu118"]),  # CUDA 13 has no code for Pascal
        (129, (89,), ["cu125", "cu118"]),
        (124, (86,), ["cu124", "cu118"]),
        (123, (90,), ["cu123"]),  # CUDA 11.8 has no code for Hopper
        (120, (80,), ["cu118"]),
        (118, (80,), ["cu118"]),
        (117, (80,), []),
        (130, (52,), []),
        (130, (52, 90), []),
    ],
)
def test_the_index_for_a_cuda_version(
    driver: int, capabilities: tuple[int, ...], indexes: list[str]
) -> None:
    assert llamacpp_wheels.cuda_indexes(Gpus(driver, capabilities)) == indexes


@pytest.mark.parametrize(
    ("gpus", "libraries", "indexes"),
    [
        (None, (), ["cpu"]),
        (Gpus(130, (90,)), (), ["cu130", "cu125", "cpu"]),
        (None, ("vulkan",), ["vulkan", "cpu"]),
    ],
)
def test_the_indexes_for_a_machine(
    monkeypatch: pytest.MonkeyPatch,
    gpus: Gpus | None,
    libraries: tuple[str, ...],
    indexes: list[str],
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(llamacpp_wheels, "nvidia_gpus", lambda: gpus)
    monkeypatch.setattr(llamacpp_wheels, "has_vulkan", lambda: "vulkan" in libraries)
    monkeypatch.setattr(llamacpp_wheels, "loads", lambda name: False)
    assert llamacpp_wheels.fitting_indexes() == indexes
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    hint = 'CMAKE_ARGS="-DGGML_' in llamacpp_wheels.compiling()
    assert hint == (indexes != ["cpu"])


@pytest.mark.parametrize(("machine", "indexes"), [("arm64", ["metal", "cpu"]), ("x86_64", ["cpu"])])
def test_the_indexes_for_a_mac(
    monkeypatch: pytest.MonkeyPatch, machine: str, indexes: list[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert llamacpp_wheels.fitting_indexes() == indexes


def test_the_cuda_libraries_of_a_wheel() -> None:
    cuda12 = ["nvidia-cuda-runtime-cu12", "nvidia-cublas-cu12"]
    cuda13 = ["nvidia-cuda-runtime==13.*", "nvidia-cublas==13.*"]
    assert llamacpp_wheels.cuda_libraries("cu124") == cuda12
    assert llamacpp_wheels.cuda_libraries("cu130") == cuda13
    assert llamacpp_wheels.cuda_libraries("vulkan") == []


def test_the_version_is_that_of_the_project() -> None:
    import llama_cpp

    assert llamacpp_wheels.pinned_version() == llama_cpp.__version__


def test_features_that_a_processor_lacks() -> None:
    features = "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | AVX512 = 1 | AVX512_BF16 = 1 | OPENMP = 1 | "
    cpuinfo = "processor\t: 0\nflags\t\t: fpu avx avx2 fma\n"
    assert lacking(features, cpuinfo) == ["AVX512", "AVX512_BF16"]
    assert lacking(features, cpuinfo.replace("fma", "avx512f avx512_bf16")) == []


NEEDS_CUDA = """
from pathlib import Path
if "/nvidia/cu13/lib/libcudart.so.13" not in Path("/proc/self/maps").read_text():
    raise RuntimeError("libcudart.so.13: cannot open shared object file")
def llama_backend_init(): pass
def llama_print_system_info(): return b"CUDA : ARCHS = 900 | CPU : SSE3 = 1 | "
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("there", [True, False])
def test_the_cuda_libraries_of_pip_are_loaded(tmp_path: Path, there: bool) -> None:
    """The wheel for CUDA names its libraries, but has no path to those that pip installs."""
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text(NEEDS_CUDA, encoding="utf-8")
    if there:
        libraries = tmp_path / "nvidia" / "cu13" / "lib"
        libraries.mkdir(parents=True)
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        names = ("/libc.so", "/libc-", "/ld-musl")  # depends on nothing that has to be found
        library = next(line.split()[-1] for line in lines if any(name in line for name in names))
        shutil.copy(library, libraries / "libcudart.so.13")
    result = subprocess.run(
        [sys.executable, "-P", str(llamacpp_wheels.BINDINGS)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode == 0) == there, result.stderr
    assert ("cannot open shared object file" in result.stderr) != there
