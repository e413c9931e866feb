"""Put what the GPU check needs into a folder, for a machine that has a GPU and no network.

    python3 start.py python benchmarks/gpu/prepare.py .gpu --python 3.12 --there packages.txt
    python3 start.py python benchmarks/gpu/prepare.py .gpu --libraries ~/built-for-that-machine

That machine needs torch, built for CUDA. `packages.txt` is what `pip list --format=freeze` says
there: what is good enough is not carried. Wheels are downloaded by pip, for Linux on x86-64.
Prebuilt libraries (`exllamav2_ext.so`, or packed as `.so.xz`; `.tar.xz` of a whole package such as
llama_cpp) are taken from a folder. The checkout then goes there with this folder in it, and
`bash benchmarks/gpu/run.sh .gpu` runs the check. The models are made there, of the demo model.
"""

import argparse
import hashlib
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


def requirements() -> list[Requirement]:
    """What the check needs: Enginebay, its tests, the engines, and what the benchmarks import."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = project["dependencies"] + extras["test"] + extras["hf"] + extras["exllamav2"]
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


def size(paths: Iterable[Path]) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in paths if path.is_file())


def main(arguments: list[str]) -> int:
    """The exit code: 1 where everything together is too large."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path, help="folder to write; what is in it goes")
    parser.add_argument("--python", default="3.12", help="version of the machine's Python")
    parser.add_argument("--there", type=Path, help="file with the packages that the machine has")
    parser.add_argument("--libraries", type=Path, help="folder with libraries built for it")
    parser.add_argument("--limit", type=float, default=64, help="MiB, with the checkout's files")
    options = parser.parse_args(arguments)

    shutil.rmtree(options.target, ignore_errors=True)
    options.target.mkdir(parents=True)
    print(f"Wheels for Python {options.python}:")
    with tempfile.TemporaryDirectory() as wheels:
        there = read_packages(options.there)
        Wheels(Path(wheels), options.python, there).add(requirements())
        names = sorted(wheel.name for wheel in Path(wheels).iterdir())
        pack(Path(wheels), options.target / "wheels.tar.xz")
    if options.libraries:
        built = [*options.libraries.glob("*.so*"), *options.libraries.glob("*.tar.xz")]
        for file in built:
            (options.target / "libraries").mkdir(exist_ok=True)
            shutil.copy(file, options.target / "libraries")
    carried = sorted(path for path in options.target.rglob("*") if path.is_file())
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in carried}
    manifest = {"python": options.python, "wheels": names, "files": hashes}
    (options.target / "prepared.json").write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    return report(carried, options.limit)


def report(carried: list[Path], limit: float) -> int:
    """Print what is large; 1 if all of it with the checkout's files is above the limit, in MiB."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    checkout = size(ROOT / name for name in tracked.stdout.split("\0") if name)
    for path in sorted(carried, key=lambda path: -path.stat().st_size)[:12]:
        print(f"{path.stat().st_size / MIB:8.1f} MiB  {path.name}")
    whole = size(carried) + checkout
    print(f"{size(carried) / MIB:8.1f} MiB in {len(carried)} files to carry")
    print(f"{whole / MIB:8.1f} MiB with the checkout's files, of {limit:g}")
    return int(whole > limit * MIB)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
