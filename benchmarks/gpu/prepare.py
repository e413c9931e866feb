"""Put all that the GPU check needs into a folder, for a machine that has a GPU and no network.

    python3 start.py python benchmarks/gpu/prepare.py .gpu --python 3.12 --there packages.txt \\
        --libraries exllamav2_ext.so.xz llama_cuda.tar.xz --archive dist/gpu.tar
    python3 start.py python benchmarks/gpu/prepare.py .gpu --refresh    # only the checkout, anew

The folder gets the checkout, with changes that are not committed; wheels, downloaded by pip for
Linux on x86-64; libraries; and the reference's answers, which are computed here. The archive is
the folder in one file. That machine needs torch, built for CUDA. `packages.txt` is what
`pip list --format=freeze` says there: what is good enough is not carried. Libraries are files that
were built for that machine: `.so`, `.so.xz`, or `.tar.xz` of a whole package such as llama_cpp.
Models are made there, of the demo model. `bash FOLDER/run.sh` runs the check there.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 24, 17, 5)] + [
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
]
NOT_CARRIED = {
    "torch": "too large; the machine must have it",
    "fastparquet": "only for converting models to EXL2",
    "ninja": "only for compiling",
    "llama-cpp-python": "its wheel has no CUDA; give a build of it with --libraries",
    "enginebay": "is the checkout",
    **dict.fromkeys(("mypy", "ruff", "pre-commit", "pytest-cov"), "only for development"),
}


TESTING = ("pytest", "pytest-asyncio", "hypothesis", "jsonschema", "gguf")
"""Of what the project's tests need, what those of the GPU check import."""


def requirements() -> list[Requirement]:
    """What the check needs: Enginebay, its engines, and what the tests and benchmarks import."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    testing = [text for text in extras["test"] if Requirement(text).name in TESTING]
    named = project["dependencies"] + extras["hf"] + extras["exllamav2"] + testing
    llama_cpp_python = ["diskcache", "typing-extensions"]  # what it requires, which is not carried
    return [Requirement(text) for text in [*named, *llama_cpp_python, "psutil"]]


class Wheels:
    """A folder of wheels: those of some requirements and of all that these require."""

    def __init__(self, folder: Path, python: str, there: Mapping[str, str | None]) -> None:
        self._folder = folder
        self._python = python
        self._there = there
        self._asked: dict[str, Requirement] = {}
        self._got: dict[str, Path] = {}

    def add(self, wanted: Iterable[Requirement]) -> None:
        """Download what is not good enough on the machine."""
        waiting = list(wanted)
        while waiting:
            requirement = waiting.pop()
            name = canonicalize_name(requirement.name)
            if name in NOT_CARRIED or not self._applies(requirement):
                continue
            before = self._asked.get(name)
            if before:
                requirement.specifier &= before.specifier
                requirement.extras |= before.extras
            self._asked[name] = requirement
            if not self._has(name, requirement):
                self._download(name, requirement)
            elif name not in self._got or (before and before.extras == requirement.extras):
                continue
            waiting += self._requires(name, requirement)

    def _applies(self, requirement: Requirement, extra: str = "") -> bool:
        environment = {
            "python_version": self._python,
            "python_full_version": f"{self._python}.0",
            "sys_platform": "linux",
            "platform_system": "Linux",
            "platform_machine": "x86_64",
            "extra": extra,
        }
        return requirement.marker is None or requirement.marker.evaluate(environment)

    def _has(self, name: str, requirement: Requirement) -> bool:
        if name in self._got:
            version = str(parse_wheel_filename(self._got[name].name)[1])
        elif name in self._there:
            version = self._there[name] or ""
        else:
            return False
        return not version or requirement.specifier.contains(version, prereleases=True)

    def _download(self, name: str, requirement: Requirement) -> None:
        if outdated := self._got.pop(name, None):
            outdated.unlink()
        platforms = [f"--platform={platform}" for platform in PLATFORMS]
        target = [f"--python-version={self._python}", "--implementation=cp", *platforms]
        what = f"{requirement.name}{requirement.specifier}"
        print(f"  {what}", flush=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", *target]
        known = set(self._folder.iterdir())
        subprocess.run([*command, "--dest", str(self._folder), what], check=True)
        [self._got[name]] = set(self._folder.iterdir()) - known

    def _requires(self, name: str, requirement: Requirement) -> Iterator[Requirement]:
        """What the wheel requires, with the extras that were asked for."""
        with zipfile.ZipFile(self._got[name]) as wheel:
            [path] = [p for p in wheel.namelist() if p.endswith(".dist-info/METADATA")]
            metadata = HeaderParser().parsestr(wheel.read(path).decode())
        for text in metadata.get_all("Requires-Dist", []):
            required = Requirement(text)
            if any(self._applies(required, extra) for extra in ("", *requirement.extras)):
                required.marker = None
                yield required


def read_packages(file: Path | None) -> dict[str, str | None]:
    """Versions by name from lines `name==version`; a name alone is taken for good enough."""
    found: dict[str, str | None] = {}
    for line in file.read_text("utf-8").splitlines() if file else ():
        name, _, version = line.strip().partition("==")
        if name and not name.startswith("#"):
            found[canonicalize_name(name.partition(" ")[0])] = version or None
    return found


def pack(wheels: Path, target: Path) -> None:
    """All wheels in one .tar.xz, each without compression of its own: half the size."""
    with tarfile.open(target, "w:xz", preset=6) as archive, tempfile.TemporaryDirectory() as folder:
        for wheel in sorted(wheels.iterdir()):
            stored = Path(folder) / wheel.name
            with zipfile.ZipFile(wheel) as packed, zipfile.ZipFile(stored, "w") as loose:
                for entry in packed.infolist():
                    entry.compress_type, content = zipfile.ZIP_STORED, packed.read(entry)
                    loose.writestr(entry, content)
            archive.add(stored, wheel.name)
            stored.unlink()


def checkout() -> list[Path]:
    """The files that git tracks, as they are now, changes that are not committed included."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [ROOT / name for name in tracked.stdout.split("\0") if name]
    return [file for file in files if file.is_file()]


def pack_checkout(target: Path) -> None:
    """The checkout's files in one .tar.xz."""
    with tarfile.open(target, "w:xz", preset=6) as made:
        for file in checkout():
            made.add(file, file.relative_to(ROOT))


def answers(target: Path) -> None:
    """The reference's answers, which take CPU time that the machine does not have."""
    command = [sys.executable, "-m", "tests.gpu.answers", str(target.resolve())]
    subprocess.run(command, cwd=ROOT, check=True)


def main(arguments: list[str]) -> int:
    """The exit code: 1 where everything together is too large."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path, help="folder to write; what is in it goes")
    parser.add_argument("--python", default="3.12", help="version of the machine's Python")
    parser.add_argument("--there", type=Path, help="file with the packages that the machine has")
    parser.add_argument("--libraries", type=Path, nargs="+", default=[], help="built for it")
    parser.add_argument("--limit", type=float, default=64, help="MiB for all of it")
    parser.add_argument("--archive", type=Path, help="file for all of it")
    parser.add_argument("--refresh", action="store_true", help="only pack the checkout again")
    options = parser.parse_args(arguments)

    target: Path = options.target
    if not options.refresh:
        shutil.rmtree(target, ignore_errors=True)
        (target / "libraries").mkdir(parents=True)
        for library in options.libraries:
            shutil.copy(library, target / "libraries")
        sizes = download(target / "wheels.tar.xz", options.python, read_packages(options.there))
        (target / "wheels.json").write_text(json.dumps(sizes, indent=1) + "\n", "utf-8")
        print("Answers of the reference", flush=True)
        answers(target / "answers.json")
    shutil.copy(Path(__file__).with_name("run.sh"), target)
    pack_checkout(target / "tree.tar.xz")
    if options.archive:
        options.archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(options.archive, "w") as made:
            made.add(target, target.name)
    return report(target, options.limit)


def download(packed: Path, python: str, there: Mapping[str, str | None]) -> dict[str, int]:
    """Pack the wheels that are needed and not there; their sizes."""
    print(f"Wheels for Python {python}:")
    with tempfile.TemporaryDirectory() as wheels:
        Wheels(Path(wheels), python, there).add(requirements())
        pack(Path(wheels), packed)
        return {wheel.name: wheel.stat().st_size for wheel in sorted(Path(wheels).iterdir())}


def report(target: Path, limit: float) -> int:
    """Print how large all is; 1 and the largest parts if it is above the limit, in MiB."""
    parts = {str(path): path.stat().st_size for path in target.rglob("*") if path.is_file()}
    size = sum(parts.values())
    print(f"{size / MIB:.1f} MiB in {target}, of {limit:g}")
    if size <= limit * MIB:
        print(f"There: OUT=results BUDGET=480 bash {target.name}/run.sh")
        return 0
    print("Too large. The largest parts, wheels and files of the checkout before they are packed:")
    parts |= json.loads((target / "wheels.json").read_text("utf-8"))
    parts |= {str(file.relative_to(ROOT)): file.stat().st_size for file in checkout()}
    for name, part in sorted(parts.items(), key=lambda part: -part[1])[:15]:
        print(f"{part / MIB:8.1f} MiB  {name}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
