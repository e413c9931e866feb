"""What the benchmarks install: a virtual environment for each peer, and llama-server from source.

All of it lies in `benchmarks/.peers/`, which git ignores; deleting that folder starts afresh.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / ".peers"
LLAMA_CPP_PYTHON = "0.3.36"
XLLAMACPP = "2026.10.11549"
TABBYAPI = "e632af41eba68abeadc3437c62674360f2f8cbf1"
"""Its commit; it has no releases."""

_LLAMA_SERVER_BUILD = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_NUMBER=1",
)


def enginebay(engine: str) -> Path:
    """The Python that runs Enginebay: this one, with what the engine needs installed into it."""
    library = {"hf": "torch", "llamacpp": "llama_cpp"}[engine]
    if importlib.util.find_spec(library) is None:
        _run([sys.executable, "-m", "pip", "install", "--editable", f"{ROOT}[{engine}]"])
    return Path(sys.executable)


def transformers() -> Path:
    """The Python of `transformers serve`, with the same torch and transformers as Enginebay's."""
    torch = version("torch").partition("+")[0]
    serving = f"transformers[serving]=={version('transformers')}"
    return _environment("transformers", [f"torch=={torch}", serving, "psutil"])


def llama_cpp_python() -> Path:
    """The Python of llama-cpp-python's server, and of the bare decode loop."""
    return _environment(
        "llama-cpp-python", [f"llama-cpp-python[server]=={LLAMA_CPP_PYTHON}", "numpy"]
    )


def xllamacpp() -> Path:
    """The Python that has llama.cpp's own server as a library, with no compiling."""
    return _environment("xllamacpp", [f"xllamacpp=={XLLAMACPP}"])


def tabbyapi() -> Path:
    """The Python of TabbyAPI's server, without torch and its engine; needs git."""
    source = tabbyapi_source()
    if not (source / "pyproject.toml").exists():
        source.mkdir(parents=True, exist_ok=True)
        git = ["git", "-C", str(source)]
        _run([*git, "init", "--quiet"])
        _run([*git, "fetch", "--depth", "1", "https://github.com/theroyallab/tabbyAPI", TABBYAPI])
        _run([*git, "checkout", "--quiet", TABBYAPI])
    return _environment("tabbyapi", [str(source)])


def tabbyapi_source() -> Path:
    """The folder of its source."""
    return FOLDER / f"tabbyapi-{TABBYAPI[:7]}"


def tools() -> Path:
    """A Python with what makes GGUF files and plots."""
    return _environment("tools", ["gguf", "numpy", "safetensors", "matplotlib"])


def llama_server() -> Path:
    """The llama-server program, built from the llama.cpp in llama-cpp-python's source package."""
    folder = FOLDER / "llama-server"
    program = folder / "build" / "bin" / "llama-server"
    if program.exists():
        return program
    source = folder / "source"
    if not source.exists():
        package = f"llama-cpp-python=={LLAMA_CPP_PYTHON}"
        source_only = ["--no-deps", "--no-binary", "llama-cpp-python", "--dest", str(folder)]
        _run([sys.executable, "-m", "pip", "download", *source_only, package])
        unpacked = folder / f"llama_cpp_python-{LLAMA_CPP_PYTHON}"
        with tarfile.open(unpacked.with_name(unpacked.name + ".tar.gz")) as archive:
            archive.extractall(folder, filter="data")
        unpacked.rename(source)
    cmake, ninja = _build_tool("cmake"), _build_tool("ninja")
    places = ["-S", str(source / "vendor" / "llama.cpp"), "-B", str(folder / "build")]
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    _run([cmake, *places, *generator, *_LLAMA_SERVER_BUILD])
    _run(_nice([cmake, "--build", str(folder / "build"), "--target", "llama-server"]))
    return program


def installed_versions(python: Path) -> dict[str, str]:
    """The versions of the packages that matter to speed, as far as this Python has them."""
    code = (
        "import importlib.metadata as m, json, platform\n"
        "names = 'enginebay', 'torch', 'transformers', 'llama_cpp_python', 'numpy', 'uvicorn', "
        "'uvloop', 'httptools', 'starlette', 'fastapi', 'sse-starlette', 'xllamacpp'\n"
        "have = {d.name: d.version for d in m.distributions()}\n"
        "found = {n: have[n] for n in names if n in have}\n"
        "print(json.dumps({'python': platform.python_version()} | found))"
    )
    versions: dict[str, str] = json.loads(subprocess.check_output([python, "-c", code], text=True))
    return versions


def _environment(name: str, requirements: list[str]) -> Path:
    """The Python of `.peers/NAME`, made anew when what it was made of has changed."""
    folder = FOLDER / name
    python = folder / "bin" / "python"
    stamp = folder / "installed.json"
    if not stamp.exists() or json.loads(stamp.read_text(encoding="utf-8")) != requirements:
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        _run(_nice([str(python), "-m", "pip", "install", *requirements]))
        stamp.write_text(json.dumps(requirements), encoding="utf-8")
    return python


def _build_tool(name: str) -> str:
    """The path of cmake or ninja: the system's, else one from the package index."""
    found = shutil.which(name)
    return found or str(_environment(name, [name]).with_name(name))


def _nice(command: list[str]) -> list[str]:
    return ["nice", "-n", "10", *command] if shutil.which("nice") else command


def _run(command: list[str]) -> None:
    """Run a step of an installation; its output goes to `.peers/install.log`."""
    FOLDER.mkdir(exist_ok=True)
    log = FOLDER / "install.log"
    print("Installing:", *[part.replace(str(ROOT) + os.sep, "") for part in command], flush=True)
    with log.open("a", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.exit(f"That failed; the reason is at the end of {log.relative_to(ROOT)}.")
