"""How plugins are found, and what happens to those that do not work."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginebay.contract.registers import Register
from enginebay.models.check_config import check_config, option_names
from enginebay.plugins import BUILTIN, Plugins
from tests.support import scripted, scripted_config, serve


def write(folder: Path, name: str, code: str) -> None:
    (folder / f"{name}.py").write_text(code, encoding="utf-8")


GOOD = """
from enginebay import hookimpl

@hookimpl
def register_backends(register):
    register("{name}", lambda settings: None)
"""


REGISTERS = "from enginebay import hookimpl\n@hookimpl\ndef register_{}: {}\n"


def test_built_ins_come_through_the_same_door() -> None:
    # VLLM-4
    plugins = Plugins()
    assert [(p.source, p.error) for p in plugins.found] == [("built in", None)] * len(BUILTIN)
    assert {"hf", "llamacpp", "exllamav2", "parsers"} <= {p.name for p in plugins.found}
    assert "hf" in plugins.backends
    assert "think" in plugins.reasoning
    assert "hermes" in plugins.tools


def test_single_files_are_found(tmp_path: Path) -> None:
    write(tmp_path, "mine", GOOD.format(name="mine"))
    plugins = Plugins(folder=tmp_path)
    assert "mine" in plugins.backends
    assert plugins.found[-1].source == str(tmp_path / "mine.py")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import does_not_exist", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError"),
        ("no Python at all", "SyntaxError"),
        (GOOD.format(name="hf"), "backend 'hf' is registered twice"),
        (
            "from enginebay import hookimpl\n@hookimpl\ndef regster_backends(register): ...",
            "ValueError: unknown hook 'regster_backends'; did you mean 'register_backends'?",
        ),
        ("from enginebay import hookimpl\n@hookimpl\ndef on_request(): ...", "unknown hook"),
        ("\n1 / 0", "ZeroDivisionError: division by zero (broken.py, line 2)"),
        ("from enginebay import hookimpl\n@hookimpl\ndef register_backends(wrong): ...", "wrong"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("class Panic(BaseException): ...\nraise Panic('rust')", "Panic: rust"),
        (
            "from enginebay import Wing, hookimpl\n@hookimpl\ndef register_wings(register):\n"
            "    register('a', type('B', (Wing,), {'name': 'b'})())",
            "the wing 'a' must have this name",
        ),
        ("def register_backends(register): ...", "it implements no hook"),
        (GOOD.format(name=""), "a backend needs a name, not ''"),
        (REGISTERS.format("backends(register)", "register(7, print)"), "needs a name, not 7"),
        (
            REGISTERS.format("backends(register)", "register('x', 7)"),
            "created by a function, not 7",
        ),
        (REGISTERS.format("backends(register)", "register('x', print, {})"), "must be a class"),
        (
            REGISTERS.format("backends(register)", "register('x', print, requires='torch')"),
            "`requires` of the backend 'x' must be a list",
        ),
        (
            REGISTERS.format("backends(register)", "register('x', print, serves='*.gguf')"),
            "`serves` of the backend 'x' must be a function",
        ),
        (REGISTERS.format("parsers(reasoning, tools)", "tools('x', print)"), "of ToolFormat"),
        (
            REGISTERS.format("parsers(reasoning, tools)", "reasoning('x', 7)"),
            "the reasoning format 'x' must be an instance of ReasoningFormat, not 7",
        ),
    ],
)
def test_a_plugin_that_does_not_work_is_named_and_left_out(
    tmp_path: Path, code: str, error: str
) -> None:
    write(tmp_path, "broken", code)
    write(tmp_path, "good", GOOD.format(name="good"))
    plugins = Plugins(folder=tmp_path)
    broken, good = plugins.found[-2:]
    assert broken.name == "broken"
    assert error in (broken.error or "")
    assert (good.name, good.error) == ("good", None)
    assert {"hf", "good"} <= set(plugins.backends)


HALF = """
from enginebay import hookimpl

@hookimpl
def register_backends(register):
    register("half", print)
    raise RuntimeError("no more")
"""


def test_nothing_is_left_of_a_plugin_that_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "half", HALF)
    write(tmp_path, "other", GOOD.format(name="half"))
    plugins = Plugins(folder=tmp_path)
    half, other = plugins.found[-2:]
    assert (half.error, half.backends) == ("RuntimeError: no more (half.py, line 7)", ())
    assert (other.error, other.backends) == (None, ("half",))


def test_a_file_cannot_take_the_place_of_another_plugin(tmp_path: Path) -> None:
    write(tmp_path, "hf", GOOD.format(name="mine"))
    plugins = Plugins(folder=tmp_path)
    assert plugins.found[-1].error == "ValueError: a plugin named 'hf' is already registered"
    assert plugins.found[0].error is None
    assert "hf" in plugins.backends
    assert "mine" not in plugins.backends


def test_files_with_an_underscore_are_no_plugins(tmp_path: Path) -> None:
    write(tmp_path, "_helper", "1 / 0")
    write(tmp_path, "__init__", "1 / 0")
    found = Plugins(folder=tmp_path).found
    assert not {"_helper", "__init__"} & {plugin.name for plugin in found}


def distribution(folder: Path, name: str, **files: str | bytes) -> None:
    """A plugin as it is installed: a module, and metadata with these files."""
    write(folder, name, GOOD.format(name=name))
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    usual = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        "entry_points.txt": f"[enginebay]\n{name} = {name}\n",
    }
    for file, content in (usual | files).items():
        data = content.encode() if isinstance(content, str) else content
        (info / file).write_bytes(data)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which Python finds modules and distributions."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(file.stem, None)


METADATA = "Metadata-Version: 2.1\nName: {}\nVersion: 1.0\nRequires-Dist: {}\n"


def test_a_distribution_for_another_enginebay_is_named(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    distribution(site, "older", METADATA=METADATA.format("older", "enginebay<99"))
    distribution(site, "newer", METADATA=METADATA.format("newer", "enginebay>=99"))
    distribution(site, "broken", METADATA=METADATA.format("broken", "enginebay>=99"))
    write(site, "broken", "1 / 0")
    plugins = Plugins()
    found = {plugin.name: plugin for plugin in plugins.found}
    reason = f"it requires enginebay>=99, and this is {plugins.version}"
    assert (found["older"].misfit, found["older"].error) == ("", None)
    assert (found["newer"].misfit, found["newer"].error) == (reason, None)
    assert f"plugin newer (entry point of newer): {reason}" in caplog.text
    assert (found["broken"].error or "").endswith(f"(broken.py, line 1); {reason}")


@pytest.mark.parametrize(
    ("files", "name", "error"),
    [
        ({"entry_points.txt": b"[enginebay]\n\xff = x\n"}, "torn", "UnicodeDecodeError"),
        ({"entry_points.txt": "[enginebay]\nnothing"}, "torn", "TypeError"),
        ({"entry_points.txt": "[enginebay]\ntorn = not a module\n"}, "torn", "Error"),
        ({"METADATA": b"\xff\xfe"}, "torn", None),
        ({"METADATA": ""}, "torn", None),
        ({"METADATA": METADATA.format("torn", "no requirement >")}, "torn", None),
    ],
)
def test_damaged_metadata_stops_nothing(
    site: Path, files: dict[str, str | bytes], name: str, error: str | None
) -> None:
    distribution(site, "torn", **files)
    distribution(site, "whole")
    found = {plugin.name: plugin for plugin in Plugins().found}
    assert found["whole"].error is None
    assert (found[name].error is None) == (error is None), found[name].error
    assert (error or "") in (found[name].error or "")


def test_what_is_no_file_is_no_plugin(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "nowhere.py").symlink_to("nothing.py")
    (tmp_path / "odd.py").write_bytes(b"x = '\xff'")
    (tmp_path / "zero.py").write_bytes(b"x = 1\0")
    write(tmp_path, "zzz", GOOD.format(name="zzz"))
    *broken, whole = Plugins(folder=tmp_path).found[-6:]
    assert (whole.name, whole.error) == ("zzz", None)
    assert all(plugin.error for plugin in broken)
    assert "it is a folder, a broken link" in (broken[0].error or "")
    loop = tmp_path / "plugins"
    loop.symlink_to("plugins")
    assert all(plugin.source == "built in" for plugin in Plugins(folder=loop).found)


LATE = """
from __future__ import annotations
from dataclasses import dataclass, KW_ONLY
from enginebay import hookimpl

@dataclass
class Options:
    _: KW_ONLY
    layers: int = 3

@hookimpl
def register_backends(register):
    register("late", print, Options, requires=["no_such_module"])
"""


def test_annotations_of_a_single_file_are_found(tmp_path: Path) -> None:
    write(tmp_path, "late", LATE)
    plugins = Plugins(folder=tmp_path)
    assert plugins.found[-1].error is None
    assert option_names(plugins.backends["late"]) == ["layers"]
    assert plugins.backends["late"].requires == ("no_such_module",)


CHOOSY = """
from enginebay import hookimpl
from pydantic import BaseModel, field_validator

class Options(BaseModel):
    size: int = 1

    @field_validator("size")
    @classmethod
    def check(cls, value):
        raise KeyError(value)

class NoModel: ...

@hookimpl
def register_backends(register):
    register("choosy", print, Options)
    register("odd", print, NoModel)
"""


@pytest.mark.parametrize(("backend", "reason"), [("choosy", "KeyError: 2"), ("odd", "Pydantic")])
def test_options_that_a_plugin_cannot_read_are_a_problem_of_the_config(
    tmp_path: Path, backend: str, reason: str
) -> None:
    write(tmp_path, "choosy", CHOOSY)
    plugins = Plugins(folder=tmp_path)
    config = scripted_config(backend=backend, options={"size": 2})
    [problem] = check_config(config, plugins)
    assert "models[0].options: the plugin of this backend cannot read them" in str(problem)
    assert reason in str(problem)
    assert option_names(plugins.backends["odd"]) == []


BAD = "raise RuntimeError('Not today.')"


def test_the_server_starts_with_a_plugin_that_does_not_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "bad", BAD)
    plugins = Plugins(folder=tmp_path)
    assert f"skipping plugin bad ({tmp_path / 'bad.py'}): RuntimeError: Not today." in caplog.text
    plugins.backends("scripted", scripted(["Hello"]))
    with serve(scripted_config(), plugins) as server:
        answer = server.openai.completions.create(model="scripted", prompt="Hi")
    assert answer.choices[0].text == "Hello"


TRACED = """
from enginebay import hookimpl

@hookimpl(wrapper=True)
def generate(backend, request):
    return (yield)

@hookimpl
def register_backends(register):
    register(7, 7)
"""


def test_calls_of_hooks_are_logged_for_those_who_debug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "enginebay.plugins")
    write(tmp_path, "torn", TRACED)
    write(tmp_path, "wrapper", TRACED.partition("@hookimpl\n")[0])
    plugins = Plugins(folder=tmp_path)
    plugins.backends("scripted", scripted(["Hello"]))
    with serve(scripted_config(), plugins) as server:
        server.openai.completions.create(model="scripted", prompt="Hi")
    assert "hook register_backends: hf\n" in caplog.text
    assert "hook register_backends raised TypeError(" in caplog.text
    assert "hook generate: wrapper, (built in)\n" in caplog.text


def test_any_plugin_can_be_blocked(tmp_path: Path) -> None:
    write(tmp_path, "mine", GOOD.format(name="mine"))
    plugins = Plugins(folder=tmp_path, blocked=["mine", "parsers"])
    assert "mine" not in plugins.backends
    assert not plugins.tools
    assert [p.name for p in plugins.found if p.blocked] == ["parsers", "mine"]


def test_nothing_is_shared_between_two_managers(tmp_path: Path) -> None:
    write(tmp_path, "mine", GOOD.format(name="mine"))
    Plugins(folder=tmp_path)
    assert "mine" not in Plugins().backends


@pytest.mark.parametrize("name", ["auto", "none"])
def test_a_format_cannot_be_named_like_a_setting(name: str) -> None:
    plugins = Plugins()
    with pytest.raises(ValueError, match="is reserved"):
        plugins.tools(name, plugins.tools["hermes"])


def test_a_name_is_registered_once() -> None:
    register: Register[int] = Register("number")
    register("one", 1)
    with pytest.raises(ValueError, match="number 'one' is registered twice"):
        register("one", 2)
    assert dict(register) == {"one": 1}
