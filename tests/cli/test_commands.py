"""Commands that end by themselves."""

import json
import os
import re
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.config.wing_sections import whole_config
from enginebay.server.http.sockets import url_of, urls_elsewhere
from tests.cli.conftest import Run
from tests.conftest import ServeScripted
from tests.support import REPOSITORY

CONFIG = """\
server:
  api_keys: [hidden]
models:
  - name: mine
    backend: scripted
    path: .
    options: {hub_token: hidden, layers: 3}
"""


@pytest.fixture
def config(plugin: Path) -> None:
    Path("config.yml").write_text(CONFIG, encoding="utf-8")


def test_version(run: Run) -> None:
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"enginebay {version('enginebay')}\n")


def test_help_imports_nothing_heavy() -> None:
    """Asking for help takes no time, and works without the engines' libraries."""
    heavy = {"torch", "transformers", "fastapi", "openai", "uvicorn", "ruamel"}
    code = (
        "import sys\n"
        "from enginebay.cli import main\n"
        "try: main()\n"
        f"finally: assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)\n"
    )
    for arguments in (["--help"], ["--version"], ["serve", "--help"], ["config", "--help"]):
        result = subprocess.run(
            [sys.executable, "-c", code, *arguments], check=False, capture_output=True, text=True
        )
        assert (result.returncode, result.stderr) == (0, "")


def outcome(*arguments: str, **more: Any) -> tuple[int, str]:
    """The exit code of a command in a process of its own, and what it says to stderr."""
    command = [sys.executable, "-m", "enginebay.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    asked = {"stdout": subprocess.DEVNULL, "env": environment, **more}
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, **asked)
    return done.returncode, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is full")
@pytest.mark.parametrize("command", ["--help", "--version", "config show", "config schema"])
@pytest.mark.usefixtures("config")
def test_output_that_cannot_be_written(command: str) -> None:
    # SEC-12: a full disk is no reason for a traceback.
    with Path("/dev/full").open("w") as full:
        said = "the output cannot be written: No space left on device\n"
        assert outcome(*command.split(), stdout=full) == (1, said)


@pytest.mark.usefixtures("config")
def test_a_terminal_that_is_not_utf_8() -> None:
    Path("plugins", "own.py").write_text('__version__ = "1 \u2713"\n', encoding="utf-8")
    ascii_only = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONIOENCODING": "ascii"}
    assert outcome("plugins", "list", env=ascii_only) == (0, "")
    Path("config.yml").write_text("server: {port: \u2713}", encoding="utf-8")
    code, said = outcome("config", "check", env=ascii_only)
    assert (code, "must be a whole number, not '?'" in said) == (2, True)


def test_a_current_folder_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"import os; os.rmdir({str(gone)!r}); from enginebay.cli import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", code, "config", "check"],
        cwd=gone,
        env=environment,
        capture_output=True,
        text=True,
    )
    said = "the current folder no longer exists; change to another one\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize(
    "command", ["serve", "chat", "models", "plugins", "conformance", "config", "ps", "pull"]
)
def test_every_command_is_listed(run: Run, command: str) -> None:
    assert f" {command} " in run("--help").output
    assert run(command, "--help").exit_code == 0


@pytest.mark.usefixtures("config")
def test_config_check(run: Run) -> None:
    result = run("config", "check")
    first, second = result.stdout.splitlines()
    assert (result.exit_code, first) == (0, "config.yml is valid; models: mine")
    assert second.startswith("wings: ")


@pytest.mark.usefixtures("config")
def test_config_check_warns_of_settings_that_are_ignored(run: Run) -> None:
    # SEC-1: they are no mistake of the config
    Path("models").mkdir()
    Path("models", "x.gguf").touch()
    Path("models", "x.yml").write_text("sampling: {top_k: 1}\nload: start\n", encoding="utf-8")
    result = run("config", "check")
    assert (result.exit_code, "models: mine, x.gguf" in result.stdout) == (0, True)
    assert "warning: " in result.stderr
    assert "x.yml:2: load: ignored, because files in the models folder may not" in result.stderr


@pytest.mark.usefixtures("config")
def test_config_check_sees_what_needs_plugins(run: Run) -> None:
    result = run("config", "check", env={"ENGINEBAY_MODELS__0__TOOLS": "odd"})
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(
        "ENGINEBAY_MODELS__0__TOOLS: models[0].tools: unknown format 'odd'; known: auto"
    )


def test_config_check_without_a_file(run: Run) -> None:
    result = run("config", "check", "--config", "mine.yml")
    assert result.exit_code == 2
    assert result.stderr.startswith("mine.yml: no such file in ")


def test_the_config_can_be_named_by_a_variable(run: Run) -> None:
    Path("mine.yml").write_text("server: {port: 7}", encoding="utf-8")
    result = run("config", "show", env={"ENGINEBAY_CONFIG": "mine.yml"})
    assert "  port: 7\n" in result.stdout


@pytest.mark.usefixtures("config")
def test_config_show(run: Run) -> None:
    result = run("config", "show", env={"ENGINEBAY_SERVER__PORT": "9000"})
    assert result.exit_code == 0
    assert "  port: 9000  # ENGINEBAY_SERVER__PORT\n" in result.stdout
    assert "  log_level: info\n" in result.stdout
    assert "      layers: 3\n" in result.stdout
    assert "hidden" not in result.stdout
    assert result.stdout.count("'**********'") == 2


@pytest.mark.usefixtures("config")
def test_what_config_show_prints_is_a_config(run: Run) -> None:
    Path("shown.yml").write_text(run("config", "show").stdout, encoding="utf-8")
    assert run("config", "check", "--config", "shown.yml").exit_code == 0


def test_config_schema(run: Run) -> None:
    assert json.loads(run("config", "schema").stdout) == whole_config().model_json_schema()


LIBRARIES = """
from enginebay import hookimpl

@hookimpl
def register_backends(register):
    register("ready", print, requires=["json"])
    register("bare", print, requires=["no_such_engine", "torn_library", "rude_library"])
    register("silent", print, requires=["silent_library"])

@hookimpl
def generate(backend, request):
    return None
"""


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("command", [["plugins"], ["plugins", "list"]])
def test_plugins(run: Run, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("plugins/torn.py").write_text("import no_such_module", encoding="utf-8")
    Path("plugins/unwanted.py").touch()
    Path("plugins/engines.py").write_text(LIBRARIES, encoding="utf-8")
    Path("torn_library.py").write_text("raise OSError('libtorn.so is missing')", encoding="utf-8")
    Path("rude_library.py").write_text("print('Hello!'); import os; os._exit(3)", encoding="utf-8")
    Path("silent_library.py").write_text("import os; os._exit(0)", encoding="utf-8")
    monkeypatch.syspath_prepend(".")
    blocked = "plugins: {blocked: [unwanted, backends, unheard-of]}\n"  # backends: a slow import
    Path("config.yml").write_text(CONFIG + blocked, encoding="utf-8")
    result = run(*command, env={"ENGINEBAY_SERVER__PORT": "1"})
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert not [line for line in lines if line.endswith(" ")]
    assert lines[0].split() == ["plugin", "version", "source", "state", "registers"]
    found = {line.partition(" ")[0]: line for line in lines}
    assert found["parsers"].split()[1:5] == [version("enginebay"), "built", "in", "ok"]
    assert re.search(r" reasoning [^;]*\bthink\b[^;]*; tools [^;]*\bhermes\b", found["parsers"])
    assert found["for_tests"].split()[-4:] == ["ok", "backends", "scripted,", "failing"]
    assert found["torn"].split()[1] == str(Path("plugins/torn.py").absolute())
    reason = "ModuleNotFoundError: No module named 'no_such_module' (torn.py, line 1)"
    assert found["torn"].endswith(f" left out  {reason}")
    assert found["unwanted"].endswith(" left out  blocked in the config")
    assert found["engines"].endswith(" backends ready, bare, silent; hooks generate")
    assert found["ready"].split() == ["ready", "json", json.__version__]
    assert "constraints" not in result.stdout
    missing, torn, rude = found["bare"].split(maxsplit=1)[1].split("; ")
    assert missing == (
        "no_such_engine does not import (ModuleNotFoundError: No module named 'no_such_engine')"
    )
    assert torn == "torn_library does not import (OSError: libtorn.so is missing)"
    assert rude == "rude_library does not import (its process ended with exit code 3)"
    assert found["silent"].endswith("not import (its process ended with exit code 0)")
    assert "Capabilities are shown for models loaded by a running server; none is running." in lines
    assert lines[-1] == "unheard-of is blocked in the config, but there is no such plugin"


def test_formats(run: Run) -> None:
    result = run("plugins", "formats", "hermes", "mistral")
    assert result.exit_code == 0, result.output
    titles = [line for line in result.stdout.splitlines() if line and not line.startswith(" ")]
    assert titles == ["reasoning: mistral", "tools: hermes", "tools: mistral"]
    assert "    [THINK]" in result.stdout
    assert """    {"name": "get_weather", "arguments": {"city": "Oslo"}}\n""" in result.stdout
    everything = run("plugins", "formats").stdout
    assert "reasoning: think\n" in everything
    assert "tools: harmony\n" in everything
    assert "(no example)" not in everything
    unknown = run("plugins", "formats", "nosuch")
    assert (unknown.exit_code, unknown.stderr) == (1, "there is no format nosuch\n")


@pytest.mark.usefixtures("plugin")
def test_capabilities_are_those_of_loaded_models(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], server={"api_keys": ["one"]})
    port = server.url.rpartition(":")[2]
    blocked = "plugins: {blocked: [backends]}"
    Path("config.yml").write_text(
        f"server: {{port: {port}, api_keys: [one]}}\n{blocked}", encoding="utf-8"
    )
    result = run("plugins", "list")
    assert result.exit_code == 0, result.output
    rows = {line.partition(" ")[0]: line.split() for line in result.stdout.splitlines()}
    assert rows["scripted"][1:] == ["text,", "constraints,", "reasoning", "budgets,", "logprobs"]
    assert rows["failing"] == ["failing"]
    assert "Capabilities are shown" not in result.stdout


@pytest.mark.usefixtures("config")
def test_models_of_the_config(run: Run) -> None:
    result = run("models", env={"ENGINEBAY_SERVER__PORT": "1"})
    assert result.exit_code == 0
    assert result.stderr.startswith("no server answers at http://127.0.0.1:1")
    assert result.stdout.splitlines()[1].split() == ["mine", "scripted", "."]


def test_models_of_a_server(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], name="served")
    result = run("models", "--url", server.url)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split()[:4] == ["served", "scripted", "ready", "4096"]


def test_names_of_commands_that_people_type(run: Run, serve_scripted: ServeScripted) -> None:
    # EVE-5
    server = serve_scripted(["ok"], name="served")
    at = ("--url", server.url)
    listed = run("models", *at).stdout
    assert "served" in listed
    for command in (["models", "list"], ["list"], ["ps"]):
        assert run(*command, *at).stdout == listed
    assert run("show", "served", *at).stdout == run("models", "inspect", "served", *at).stdout
    assert run("stop", "served", *at).stdout == "served is unloaded\n"
    assert "unloaded" in run("list", *at).stdout
    assert "served" not in run("ps", *at).stdout
    nobody = run("ps", "--url", "127.0.0.1:1")
    assert (nobody.exit_code, nobody.stdout) == (1, "")
    assert "is the server running?" in nobody.stderr
    assert run("pull", "no name").stderr == run("download", "no name").stderr


def test_models_of_the_configured_server(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], name="served", server={"api_keys": ["one"]})
    port = server.url.rpartition(":")[2]
    Path("config.yml").write_text(f"server: {{port: {port}, api_keys: [one]}}", encoding="utf-8")
    assert "served" in run("models").stdout


def test_models_are_loaded_switched_and_unloaded(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], name="a/b", load="command", aliases=["c"])
    for command, said in (
        (["load", "a/b"], "a/b is ready\n"),
        (["unload", "c"], "a/b is unloaded\n"),
        (["switch", "c", "--now"], "c is ready\n"),
    ):
        result = run("models", *command, "--url", server.url)
        assert (result.exit_code, result.stdout) == (0, said), result.stderr
        assert ("ready\n" in result.stderr) is (command[0] != "unload")
    for command in ("load", "switch", "unload"):
        result = run("models", command, "nobody", "--url", server.url)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "'nobody' does not exist" in result.stderr
        result = run("models", command, "nobody", "--url", "127.0.0.1:1")
        assert result.exit_code == 1
        assert "is the server running?" in result.stderr


@pytest.mark.parametrize("command", [(), ("load", "a"), ("unload", "a"), ("inspect", "a")])
def test_for_want_of_a_key_it_says_how_to_name_one(
    run: Run, serve_scripted: ServeScripted, command: tuple[str, ...]
) -> None:
    server = serve_scripted(["ok"], name="a", server={"api_keys": ["one"]})
    result = run("models", *command, "--url", server.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith("; name one with --api-key, or in ENGINEBAY_API_KEY\n")


def test_a_load_that_fails_says_why(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], load="command", chat_template="none.jinja")
    result = run("models", "load", "scripted", "--url", server.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no chat template 'none.jinja'" in result.stderr
    rows = run("models", "--url", server.url).stdout.splitlines()
    assert rows[0].split() == ["model", "backend", "state", "context", "RAM", "GPU", "requests"]
    assert "failed: there is no chat template" in rows[1]


def test_models_that_failed_say_why(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], backend="nobody")
    assert "failed: unknown backend 'nobody'" in run("models", "--url", server.url).stdout


def test_models_without_the_key(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], server={"api_keys": ["one"]})
    result = run("models", "--url", server.url)
    assert result.exit_code == 1
    assert "API key" in result.stderr
    assert run("models", "--url", server.url, "--api-key", "one").exit_code == 0


def test_models_of_nobody(run: Run) -> None:
    result = run("models", "--url", "127.0.0.1:1")
    assert result.exit_code == 1
    assert result.stderr == "nothing answers at 127.0.0.1:1; is the server running?\n"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80"),
        ("my.host", "http://my.host:80"),
    ],
)
def test_url_of(host: str, url: str) -> None:
    assert url_of(host, 80) == url


def test_urls_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other machines are told of, where they can connect."""
    addresses = {"lo": "127.0.0.1", "lan": "192.168.1.5", "odd": "169.254.7.7"}
    found = {
        name: [SimpleNamespace(family=socket.AF_INET, address=address)]
        for name, address in addresses.items()
    }
    monkeypatch.setattr("psutil.net_if_addrs", lambda: found)
    for host in ("0.0.0.0", "::"):
        assert urls_elsewhere(host, 80) == ["http://192.168.1.5:80"]
    assert urls_elsewhere("127.0.0.1", 80) == []
