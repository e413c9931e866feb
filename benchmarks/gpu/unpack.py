"""Install what prepare.py has put into a folder, without network: `unpack.py FOLDER SITE`.

Standard library only. SITE is a folder for PYTHONPATH, not that machine's own site-packages.
"""

import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path


def unpack(folder: Path, site: Path) -> None:
    """Wheels by pip, libraries beside them; what has been done before is not done again."""
    stamp = site / "unpacked.json"
    prepared = (folder / "wheels.json").read_bytes()
    if stamp.exists() and stamp.read_bytes() == prepared:
        return
    site.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as loose:
        with tarfile.open(folder / "wheels.tar.xz") as archive:
            archive.extractall(loose, filter="data")
        wheels = sorted(map(str, Path(loose).glob("*.whl")))
        offline = ["--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade"]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *offline, "--target", str(site), *wheels], check=True)
    for library in sorted((folder / "libraries").glob("*")):
        if library.name.endswith(".tar.xz"):
            with tarfile.open(library) as archive:
                archive.extractall(site, filter="fully_trusted")
        elif library.suffix == ".xz":
            with lzma.open(library) as packed, (site / library.stem).open("wb") as file:
                shutil.copyfileobj(packed, file)
        else:
            shutil.copy(library, site)
    describe(site, "llama_cpp", "llama_cpp_python")
    stamp.write_bytes(prepared)


def describe(site: Path, package: str, name: str) -> None:
    """Give a package that came without its wheel the metadata in which its version is looked up."""
    file = site / package / "__init__.py"
    text = file.read_text("utf-8") if file.exists() else ""
    found = re.search(r"""^__version__ = ["'](.+)["']""", text, re.MULTILINE)
    if found and not list(site.glob(f"{name}-*.dist-info")):
        info = site / f"{name}-{found[1]}.dist-info"
        info.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {found[1]}\n"
        (info / "METADATA").write_text(metadata, "utf-8")


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
