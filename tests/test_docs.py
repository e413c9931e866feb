"""What the documentation shows works, it shows every hook, and its links lead somewhere."""

import re
from pathlib import Path
from typing import Any

import pluggy
import pytest
import typer

from enginebay.cli.program import program
from enginebay.contract import hookspecs
from enginebay.models.check_config import check_config
from enginebay.plugins import Plugins
from enginebay.testing import check_backend
from tests.support import DEMO_MODEL, REPOSITORY, plugins_with, scripted, scripted_config, serve

GUIDE = (REPOSITORY / "docs" / "guides" / "plugins.md").read_text(encoding="utf-8")
PLUGIN_API = (REPOSITORY / "docs" / "reference" / "plugins.md").read_text(encoding="utf-8")
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")]
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE + PLUGIN_API + README, re.DOTALL)

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def block(containing: str) -> str:
    return next(code for code in BLOCKS if containing in code)


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    return names


def hooks() -> dict[str, str]:
    """What the documentation says of each hook, by its name."""
    manager = pluggy.PluginManager("enginebay")
    manager.add_hookspecs(hookspecs)
    specs = [hook.spec for name, hook in vars(manager.hook).items() if not name.startswith("_")]
    headings = {spec.name: f"### `{spec.name}({', '.join(spec.argnames)})`\n" for spec in specs}
    return {
        name: re.split(r"^##", PLUGIN_API.partition(heading)[2], flags=re.MULTILINE)[0]
        for name, heading in headings.items()
    }


def text_of(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Those that GitHub makes of headings."""
    headings = re.findall(r"(?m)^#+ (.*)$", text_of(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", text_of(page))
    for path, anchor in links:
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_the_index_links_every_page_and_the_readme_links_the_index() -> None:
    docs = REPOSITORY / "docs"
    linked = re.findall(r"\]\(([\w/-]+\.md)\)", (docs / "index.md").read_text(encoding="utf-8"))
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")} - {"index.md"}
    assert sorted(linked) == sorted(pages)
    assert "](docs/index.md)" in README


def test_the_readme_has_every_command() -> None:
    commands = typer.main.get_command(program())
    assert isinstance(commands, typer.core.TyperGroup)
    assert [name for name in commands.commands if f"`enginebay {name}" not in README] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_spells_the_address_of_the_repository(page: Path) -> None:
    """Its one place is `project.urls` in pyproject.toml."""
    assert not re.search(r"git clone|github\.com/[\w.-]+/enginebay", page.read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_writes_the_command_in_one_way(page: Path) -> None:
    # EVE-5: `start.py` makes it a command of every folder.
    assert not re.search(r"\.venv[/\\]\w+[/\\]enginebay", page.read_text("utf-8"))


@pytest.mark.parametrize("name", hooks())
def test_every_hook_has_a_heading_that_is_its_signature_and_a_plugin_to_paste(
    name: str, tmp_path: Path
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", hooks()[name], re.DOTALL)
    pasted = [code for code in blocks if "@hookimpl" in code]
    assert pasted
    for number, code in enumerate(pasted):
        (tmp_path / f"pasted{number}.py").write_text(code, encoding="utf-8")
    for plugin in Plugins(folder=tmp_path).found[-len(pasted) :]:
        assert (plugin.error, plugin.hooks) == (None, (name,))


def test_the_backend_with_options_in_the_documentation(tmp_path: Path) -> None:
    (tmp_path / "reader.py").write_text(block('register("reader"'), encoding="utf-8")
    config = scripted_config(backend="reader", options={"says": "so it is"})
    plugins = Plugins(folder=tmp_path)
    entry = plugins.backends["reader"]
    assert entry.requires == ("numpy",)
    assert entry.serves
    assert entry.serves(Path("a.txt"))
    assert not entry.serves(Path("a.gguf"))
    assert check_config(config, plugins) == []
    wrong = scripted_config(backend="reader", options={"sais": "so it is"})
    assert "did you mean 'says'?" in str(check_config(wrong, plugins))
    with serve(config, plugins) as server:
        answer = server.openai.completions.create(model="scripted", prompt="Hi")
    assert answer.choices[0].text == "so it is"


async def test_the_tests_in_the_documentation_pass() -> None:
    await run(block("async def test_what_is_told"))["test_what_is_told"]()
    names = run(block("class ParrotEngine("))
    exec(block("async def test_parrot"), names)
    await names["test_parrot"]()


async def test_the_route_in_the_documentation_and_its_test() -> None:
    # PLG-1
    names = run(block('register("POST", "/ask"'))
    exec(block("async def test_ask"), names)
    await names["test_ask"]()


@pytest.mark.parametrize("name", ["ParrotEngine", "MonkeyEngine", "Parrot", "Mirror"])
async def test_the_backends_in_the_documentation_keep_the_contract(name: str) -> None:
    await check_backend(run(block(f"class {name}("))[name])


async def test_the_engine_on_the_batching_kit_in_the_documentation() -> None:
    """With all sampling params, constraints and budgets, over the demo model."""
    pytest.importorskip("torch").set_num_threads(1)  # two would wait for each other
    names = run(block("class CachesRunner("))
    prompt = "<|im_start|>user\nTell me a story about a train.<|im_end|>\n<|im_start|>assistant\n"
    await check_backend(lambda: names["load"](DEMO_MODEL), prompt=prompt)
    assert len(block("class CachesRunner(").splitlines()) < 120


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


def test_the_first_backend_of_the_guide_is_short_and_works(tmp_path: Path) -> None:
    (tmp_path / "parrot.py").write_text(block("def parrot():"), encoding="utf-8")
    assert GUIDE.index("```python") < GUIDE.index("## ")
    assert len([line for line in block("def parrot():").splitlines() if line]) <= 8
    with serve(scripted_config(name="polly", backend="parrot"), Plugins(folder=tmp_path)) as server:
        answer = server.openai.chat.completions.create(
            model="polly", messages=[{"role": "user", "content": "Pretty bird"}]
        )
    assert answer.choices[0].message.content == "Pretty bird"


def test_the_backend_for_messages_in_the_documentation(tmp_path: Path) -> None:
    (tmp_path / "mirror.py").write_text(block("class Mirror("), encoding="utf-8")
    with serve(scripted_config(backend="mirror"), Plugins(folder=tmp_path)) as server:
        answer = server.http.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "Pretty bird"}], "seed": 1},
        )
    [choice] = answer.json()["choices"]
    assert choice["message"]["content"] == "Pretty bird"
    assert choice["message"]["reasoning_content"] == "What was it?"
    assert answer.json()["usage"]["completion_tokens"] == 2
    assert answer.headers["x-unsupported-params"] == "seed"


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
