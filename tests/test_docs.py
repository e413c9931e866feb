"""What the documentation shows works, and it shows every hook."""

import re
from pathlib import Path
from typing import Any

import pluggy
import pytest

from core import hookspecs
from core.plugins import Plugins
from core.testing import check_backend
from tests.support import REPOSITORY, plugins_with, scripted, scripted_config, serve

PLUGINS_MD = (REPOSITORY / "docs" / "plugins.md").read_text(encoding="utf-8")
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PLUGINS_MD + README, re.DOTALL)

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def block(containing: str) -> str:
    return next(code for code in BLOCKS if containing in code)


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    return names


def test_every_hook_has_a_heading_that_is_its_signature() -> None:
    manager = pluggy.PluginManager("enginebay")
    manager.add_hookspecs(hookspecs)
    for name, hook in vars(manager.hook).items():
        if not name.startswith("_"):
            assert hook.spec is not None
            assert f"### `{name}({', '.join(hook.spec.argnames)})`" in PLUGINS_MD


@pytest.mark.parametrize("name", ["ParrotEngine", "MonkeyEngine", "Parrot"])
async def test_the_backends_in_the_documentation_keep_the_contract(name: str) -> None:
    await check_backend(run(block(f"class {name}("))[name])


@pytest.mark.parametrize("name", ["ParrotEngine", "Parrot"])
def test_the_backends_in_the_documentation_work_as_single_files(name: str, tmp_path: Path) -> None:
    (tmp_path / "parrot.py").write_text(block(f"class {name}("), encoding="utf-8")
    plugins = Plugins(folder=tmp_path)
    config = scripted_config(name="polly", backend="parrot")
    with serve(config, plugins) as server:
        answer = server.openai.chat.completions.create(
            model="polly", messages=[{"role": "user", "content": "Pretty bird"}]
        )
    assert answer.choices[0].message.content == "Pretty bird"


def test_the_tool_format_in_the_documentation_forces_calls(tmp_path: Path) -> None:
    (tmp_path / "ask.py").write_text(block("class AskFormat("), encoding="utf-8")
    plugins = Plugins(folder=tmp_path)
    plugins.backends("scripted", plugins_with(scripted=scripted(["Oslo"])).backends["scripted"])
    with serve(scripted_config(tools="ask"), plugins) as server:
        answer = server.openai.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "Hi"}],
            tools=[{"type": "function", "function": {"name": "weather", "parameters": CITY}}],
            tool_choice="required",
        )
    [call] = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("weather", '{"city":"Oslo"}')


def test_the_wrapper_in_the_documentation_meters(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "meter.py").write_text(block("async def counted"), encoding="utf-8")
    plugins = Plugins(folder=tmp_path)
    plugins.backends("scripted", plugins_with(scripted=scripted(["ab", "c"])).backends["scripted"])
    with serve(scripted_config(), plugins) as server:
        server.openai.completions.create(model="scripted", prompt="12345")
    assert "5 + 4 tokens" in capsys.readouterr().out
