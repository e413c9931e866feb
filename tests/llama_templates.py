"""The chat templates in the source package of the installed llama-cpp-python.

They are read from what the benchmarks unpacked, else from a download of that package, which is kept
in an ignored folder. It takes a minute or two, so it happens in CI, before tests are collected, and
where somebody asks for it:

python -m tests.llama_templates    # fetches them

Nothing of them is in this repository.
"""

import subprocess
import sys
import tarfile
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.support import REPOSITORY

PACKAGE = "llama-cpp-python"
WHERE = "vendor/llama.cpp/models/templates"
WITHOUT = "no templates: python -m tests.llama_templates"
CACHE = REPOSITORY / "tests" / ".cache"


@cache
def llama_templates() -> dict[str, str]:
    """Template sources by file name without suffix; none when they cannot be had."""
    for folder in (REPOSITORY / "benchmarks" / ".peers").glob(f"*/source/{WHERE}"):
        return _read(folder)
    folder = _cache()
    return {} if folder is None else _read(folder)


def _cache() -> Path | None:
    try:
        return CACHE / f"{PACKAGE}-{version(PACKAGE)}"
    except PackageNotFoundError:
        return None


def _read(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.jinja")}


def fetch() -> None:
    """Download the package's source, once; the folder stays empty when that does not work."""
    folder = _cache()
    if folder is None or folder.is_dir():
        return
    folder.mkdir(parents=True)
    requirement = f"{PACKAGE}=={version(PACKAGE)}"
    options = ["--no-deps", "--no-binary", PACKAGE, "--retries", "0", "--timeout", "10"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(CACHE), requirement]
    subprocess.run(command, check=False, capture_output=True)
    for package in CACHE.glob("llama_cpp_python-*.tar.gz"):
        with tarfile.open(package) as archive:
            for member in archive:
                name = Path(member.name)
                if WHERE in member.name and name.suffix == ".jinja":
                    file = archive.extractfile(member)
                    assert file
                    (folder / name.name).write_bytes(file.read())
        package.unlink()


if __name__ == "__main__":
    wanted = _cache()
    if wanted is None:
        sys.exit(f"{PACKAGE} is not installed")
    fetch()
    print(f"{len(_read(wanted))} templates in {wanted}")
