"""A tiny llama-cpp-python 9.9: a wheel of it, and a source archive that pip builds."""

import io
import tarfile
import zipfile
from pathlib import Path

FILE = "llama_cpp_python-9.9-py3-none-any.whl"
INFO = "llama_cpp_python-9.9.dist-info"
WORKS = """
built = {built!r}
def llama_backend_init(): {start}
def llama_print_system_info(): return b"CPU : SSE3 = 1 | "
"""
BUILDER = """
import zipfile
from pathlib import Path

FILES = {files!r}

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    for number in range(1, 41):
        print(f"[{{number}}/40] Building CXX object file{{number}}.cpp.o", flush=True)
    with zipfile.ZipFile(Path(wheel_directory) / {file!r}, "w") as wheel:
        for name, text in FILES.items():
            wheel.writestr(name, text)
    return {file!r}
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "builder"\nbackend-path = ["."]\n'


def write_wheel(folder: Path, start: str = "pass") -> None:
    """Write the wheel into a folder; `start` is the body of its `llama_backend_init`."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / FILE, "w") as wheel:
        for name, text in _files("prebuilt", start).items():
            wheel.writestr(name, text)


def write_source(folder: Path) -> None:
    """Write the source archive into a folder; its builder prints like ninja."""
    builder = BUILDER.format(files=_files("compiled", "pass"), file=FILE)
    metadata = _files("", "")[f"{INFO}/METADATA"]
    files = {"pyproject.toml": PYPROJECT, "builder.py": builder, "PKG-INFO": metadata}
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "llama_cpp_python-9.9.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"llama_cpp_python-9.9/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


def _files(built: str, start: str) -> dict[str, str]:
    files = {
        "llama_cpp.py": WORKS.format(built=built, start=start),
        f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: 9.9\n",
        f"{INFO}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    names = [*files, f"{INFO}/RECORD"]
    return {**files, f"{INFO}/RECORD": "".join(f"{name},,\n" for name in names)}
