"""`enginebay plugins new`: a plugin package to start from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from enginebay.cli.console import fail, stdout
from enginebay.cli.settings import load_plugins

SKELETON = Path(__file__).with_name("skeleton")
NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
LONGEST_NAME = 50


def new(
    name: Annotated[
        str, typer.Argument(help="Name of the backend, as in `backend` of the config.")
    ],
    into: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where to create the package folder.")
    ] = Path(),
) -> None:
    """Write a plugin package with a small backend that works, tests included."""
    _require_valid(name)
    distribution = "enginebay-" + name.replace("_", "-")
    target = into / distribution
    try:
        target.mkdir()
    except FileExistsError:
        fail(f"{target} already exists; nothing was written")
    except OSError as error:
        fail(f"{target} cannot be created: {error.strerror}")
    module = distribution.replace("-", "_")
    write_package(target, {"name": name, "distribution": distribution, "module": module})
    console = stdout()
    console.print(f"{target} is a working plugin with the backend {name}. Now:", soft_wrap=True)
    for command in (
        f"cd {target}",
        "enginebay plugins add --editable '.[test]'",
        "python -m pytest",
        "enginebay serve",
    ):
        console.print(f"  {command}", soft_wrap=True)


def write_package(target: Path, names: Mapping[str, str]) -> None:
    """Fill the empty folder `target` with a package; `names`: `name`, `distribution`, `module`."""
    for template in sorted(SKELETON.rglob("*.template")):
        relative = template.relative_to(SKELETON).with_suffix("")
        if relative.parts[0] == "package":
            relative = Path(names["module"], *relative.parts[1:])
        path = target / relative
        path.parent.mkdir(exist_ok=True)
        text = Template(template.read_text(encoding="utf-8")).substitute(names)
        path.write_text(text, encoding="utf-8", newline="\n")


def _require_valid(name: str) -> None:
    if not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        fail(
            f"{name!r} cannot be the name of a backend: use at most {LONGEST_NAME} lower-case "
            "letters, digits and single hyphens, beginning with a letter",
            code=2,
        )
    from enginebay.config.schema import Config

    plugins = load_plugins(Config(), quiet=True)
    if name in plugins.backends or name in {plugin.name for plugin in plugins.found}:
        fail(f"a plugin or backend {name!r} already exists; choose another name", code=2)
