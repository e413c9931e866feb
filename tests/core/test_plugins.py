"""How plugins are found, and what happens to those that do not work."""

from pathlib import Path

import pytest

from core.plugins import Plugins
from core.registers import Register


def write(folder: Path, name: str, code: str) -> None:
    (folder / f"{name}.py").write_text(code, encoding="utf-8")


GOOD = """
from enginebay import hookimpl

@hookimpl
def register_backends(register):
    register("{name}", lambda settings: None)
"""


def test_built_ins_come_through_the_same_door() -> None:
    # VLLM-4
    plugins = Plugins()
    assert [(p.name, p.source, p.error) for p in plugins.found[:2]] == [
        ("backends", "built in", None),
        ("parsers", "built in", None),
    ]
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
        ("from enginebay import hookimpl\n@hookimpl\ndef regster_backends(register): ...", "hook"),
        ("from enginebay import hookimpl\n@hookimpl\ndef register_backends(wrong): ...", "wrong"),
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


def test_a_name_is_registered_once() -> None:
    register: Register[int] = Register("number")
    register("one", 1)
    with pytest.raises(ValueError, match="number 'one' is registered twice"):
        register("one", 2)
    assert dict(register) == {"one": 1}
