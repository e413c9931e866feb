"""`enginebay plugins add` and `enginebay plugins remove`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from enginebay.cli.console import fail, stderr, stdout
from enginebay.cli.plugins import state_of
from enginebay.cli.settings import ConfigOption, plugins_folder

if TYPE_CHECKING:
    from enginebay.config.schema import Config
    from enginebay.plugins import Candidate, Plugin

_TIMEOUT = 120
"""Seconds for all plugins to be imported."""
_LOAD = """
import dataclasses, json, logging, pathlib, sys
from enginebay.plugins import Plugins
logging.disable()
found = Plugins(folder=pathlib.Path(sys.argv[1]), blocked=sys.argv[2:]).found
print("\\n" + json.dumps([dataclasses.asdict(plugin) for plugin in found]))
"""
_EXTRAS = re.compile(r"\[[\w\s,.-]*\]$")
_ARCHIVES = (".whl", ".zip", ".gz", ".bz2", ".py")

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")]


def add(
    package: Annotated[
        str,
        typer.Argument(
            metavar="PACKAGE|PATH|URL",
            help="A package of the index, a folder, wheel or archive, a URL, or a single .py file.",
        ),
    ],
    editable: Annotated[
        bool, typer.Option("--editable", "-e", help="Use a folder as it is, for its author.")
    ] = False,
    yes: Yes = False,
    config: ConfigOption = None,
) -> None:
    """Install a plugin into the environment that runs Enginebay, and show what it registers.

    The versions of Enginebay and its libraries stay as they are. A single .py file is copied to the
    plugins folder of the config.
    """
    from enginebay.cli.client import configured

    settings = configured(config)
    if package.startswith("-"):
        fail(f"{package!r} is not a package, a path or a URL", code=2)
    if "://" in package and package.endswith(".py"):
        fail(f"{package} is a single file: download it, and add it by its path", code=2)
    path = Path(_EXTRAS.sub("", package)).expanduser()
    is_path = "://" not in package and (
        path.name in ("", "..") or "/" in package or "\\" in package or path.suffix in _ARCHIVES
    )
    if editable and not is_path:
        fail(f"--editable needs a folder, and {package} is none", code=2)
    if is_path and not path.exists():
        fail(f"there is no file or folder {path}", code=2)
    if is_path and path.suffix == ".py":
        _add_file(path, settings)
        return
    if (
        is_path
        and path.is_dir()
        and not any((path / name).exists() for name in ("pyproject.toml", "setup.py"))
    ):
        fail(
            f"{path} is no Python package: it has no pyproject.toml. A plugin that is a single "
            "file is added by the path of the file.",
            code=2,
        )
    _add_package(package, path.resolve() if is_path else None, editable, yes, settings)


def _add_package(
    package: str, path: Path | None, editable: bool, yes: bool, settings: Config
) -> None:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    from enginebay.cli.environment import (
        comes_from,
        find_installer,
        install,
        installed,
        kept_by,
        own_requirements,
    )
    from enginebay.plugins import discovered

    name = ""
    if path:
        extras = _EXTRAS.search(package)
        what, url = f"{path}{extras[0] if extras else ''}", path.as_uri()
    else:
        what = url = package
        if "://" not in package or "@" in package.partition("://")[0]:
            try:
                name = canonicalize_name(Requirement(package).name)
            except InvalidRequirement:
                fail(f"{package!r} is not a package, a path or a URL", code=2)
            if name in own_requirements():
                fail(f"{name} is a part of Enginebay, and no plugin", code=2)
    installer = find_installer()
    before = installed()
    stderr().print(f"{installer.name} installs {what} into {sys.prefix}")
    install(installer, ["--editable", what] if editable else [what], package)
    after = installed()
    new = [each for each in after if each not in before]
    touched = {
        each
        for each, there in after.items()
        if each in (name, *new)
        or _is_from(url, comes_from(there))
        or there.version != before[each].version
    }
    added = [
        each
        for each in discovered(None)
        if each.distribution and canonicalize_name(each.distribution) in touched
    ]
    if not added:
        asked = [name] if name else [x for x in touched if _is_from(url, comes_from(after[x]))]
        stderr().print(
            f"{', '.join(asked) or package} is no plugin of Enginebay: it has no entry point of "
            "the group `enginebay`"
        )
        _offer_removal(new, yes)
        raise typer.Exit(1)
    plugins = _loaded(settings)
    works = [_show(each, plugins) for each in added]
    if not all(works):
        _offer_removal(new, yes)
        raise typer.Exit(1)
    if note := kept_by(sorted({each.distribution for each in added})):
        stderr().print(note)
    stderr().print("A server that is running uses it after a restart.")


def _is_from(asked: str, origin: str) -> bool:
    """Whether this is the URL of an installed distribution; that of git has more around it."""
    return origin == asked or (
        not asked.startswith("file:") and len(origin) > 0 and origin in asked
    )


def _add_file(file: Path, settings: Config) -> None:
    from enginebay.plugins import discovered

    folder = plugins_folder(settings)
    target = folder / file.name
    if not file.is_file():
        fail(f"{file} is not a file", code=2)
    if file.name.startswith("_"):
        fail(f"{file.name} begins with an underscore, and such files are no plugins", code=2)
    try:
        if target.exists() or target.is_symlink():
            if target.is_file() and target.read_bytes() == file.read_bytes():
                fail(f"{target} is there already, with the same content")
            remedy = f"remove it first: enginebay plugins remove {target.name}"
            fail(f"{target} is there already, with other content; {remedy}")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    except OSError as error:
        fail(f"{file} cannot be copied to {target}: {error.strerror}")
    [added] = [each for each in discovered(folder) if each.file == target]
    if not _show(added, _loaded(settings)):
        _delete(target)
        fail(f"{target} was removed again")
    stderr().print(f"{target} was written. A server that is running uses it after a restart.")


def _loaded(settings: Config) -> list[Plugin] | str:
    """Return all plugins as a new process finds them, or why that process failed."""
    from enginebay.plugins import Plugin

    command = [sys.executable, "-P", "-c", _LOAD, str(plugins_folder(settings))]
    try:
        done = subprocess.run(
            [*command, *settings.plugins.blocked],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return f"its import does not end within {_TIMEOUT} seconds"
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        return f"its import ends the process with exit code {done.returncode}: {last[0]}"
    return [Plugin(**each) for each in json.loads(done.stdout.splitlines()[-1])]


def _show(added: Candidate, plugins: list[Plugin] | str) -> bool:
    """Print what a plugin registers, or why it does not work; whether it works."""
    name = f"{added.name} {added.version}".rstrip()
    if isinstance(plugins, str):
        stderr().print(f"plugin {name}: {plugins}")
        return False
    plugin = next(
        each for each in plugins if (each.name, each.source) == (added.name, added.source)
    )
    state, registers = state_of(plugin)
    (stderr() if plugin.error else stdout()).print(f"plugin {name}: {state}; {registers}")
    return plugin.error is None


def remove(
    name: Annotated[str, typer.Argument(help="Name of a plugin, or of its distribution or file.")],
    yes: Yes = False,
    config: ConfigOption = None,
) -> None:
    """Uninstall a plugin, or delete its file in the plugins folder."""
    from packaging.utils import canonicalize_name

    from enginebay.cli.client import configured
    from enginebay.plugins import discovered

    folder = plugins_folder(configured(config))
    found = list(discovered(folder))
    named = [
        each
        for each in found
        if name in (each.name, each.file and each.file.name)
        or (each.distribution and canonicalize_name(each.distribution) == canonicalize_name(name))
    ]
    places = {str(each.file or each.distribution) for each in named} - {""}
    if canonicalize_name(name) == "enginebay":
        fail("enginebay is the server itself; uninstall it with the program that installed it")
    if not named:
        there = [each.name for each in found if each.distribution or each.file]
        fail(f"there is no plugin {name}; these can be removed: {', '.join(there) or 'none'}")
    if not places:
        fail(
            f"{name} is a part of Enginebay and cannot be removed. To leave it out, add its name "
            f"to the config: plugins: {{blocked: [{name}]}}"
        )
    if len(places) > 1:
        fail(f"{name} names several plugins; name one of: {', '.join(sorted(places))}")
    [place] = places
    same = [each for each in found if str(each.file or each.distribution) == place]
    _remove(same[0], [each.name for each in same], yes)


def _remove(one: Candidate, of_distribution: Iterable[str], yes: bool) -> None:
    from packaging.utils import canonicalize_name

    from enginebay.cli.environment import find_installer, own_requirements, uninstall

    if one.file:
        if not yes:
            typer.confirm(f"Delete {one.file}?", abort=True, err=True)
        _delete(one.file)
        stdout().print(f"{one.file} was deleted", soft_wrap=True)
        return
    if canonicalize_name(one.distribution) in own_requirements():
        fail(f"{one.distribution} is needed by Enginebay itself and cannot be removed")
    installer = find_installer()
    plugins = ", ".join(of_distribution)
    if not yes:
        question = f"Uninstall {one.distribution} {one.version} with its plugins ({plugins})?"
        typer.confirm(question, abort=True, err=True)
    uninstall(installer, [one.distribution])
    stdout().print(f"{one.distribution} was uninstalled; its libraries stay", soft_wrap=True)


def _offer_removal(names: list[str], yes: bool) -> None:
    """Uninstall what this command has installed, if the user agrees."""
    from enginebay.cli.environment import find_installer, uninstall

    if not names:
        return
    if yes or (
        sys.stdin.isatty() and typer.confirm(f"Uninstall {', '.join(names)} again?", err=True)
    ):
        uninstall(find_installer(), names)
        stderr().print(f"{', '.join(names)}: uninstalled again")
    else:
        stderr().print(f"{', '.join(names)}: still installed; --yes would have uninstalled it")


def _delete(file: Path) -> None:
    try:
        file.unlink()
    except OSError as error:
        fail(f"{file} cannot be deleted: {error.strerror}")
    with suppress(OSError, NotImplementedError):
        Path(cache_from_source(str(file))).unlink()
