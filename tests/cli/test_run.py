"""`enginebay run`: from a hub, or from this machine (MOD-2)."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx2
import pytest

from demo.to_gguf import convert
from enginebay.server.http.sockets import listen
from tests.cli.conftest import Run
from tests.downloads.conftest import StartHub
from tests.downloads.conftest import start_hub as start_hub
from tests.downloads.hub import REPO, FakeHub
from tests.downloads.test_download import content, until
from tests.support import DEMO_MODEL, NO_TLS, REPOSITORY

FILES = {"tiny-Q4_K_M.gguf": b"GGUF", "tiny-Q8_0.gguf": b"GGUF8", "README.md": b"x"}
SCRIPTED = ("--backend", "of_gguf", "--port", "0")
OF_GGUF = 'register("of_gguf", create, serves=lambda path: any(path.glob("*.gguf")))'
posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals and terminals")


@pytest.fixture
def of_gguf(plugin: Path) -> None:
    """Another backend of the plugin, of GGUF files."""
    text = plugin.read_text(encoding="utf-8")
    plugin.write_text(f"{text}    {OF_GGUF}\n", encoding="utf-8")


@pytest.mark.usefixtures("of_gguf")
def test_a_file_or_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "script").mkdir()
    for name in ("script", str(tmp_path / "script")):
        result = run("run", name, "Hi", "--port", "0")
        assert (result.exit_code, result.stdout) == (0, "Hello, world\n")
        assert re.search(r"script is served at http://127.0.0.1:\d+/v1, with a page", result.stderr)
    (tmp_path / "models" / "mine").mkdir(parents=True)
    assert run("run", "mine", "Hi", *SCRIPTED).stdout == "Hello, world\n"  # of `model_dir`
    assert not Path("keys.yml").exists()
    Path("config.yml").write_text("plugins: {blocked: [page]}\n", encoding="utf-8")
    assert re.search(r"is served at \S+/v1\n", run("run", "script", "Hi", "--port", "0").stderr)


@pytest.mark.usefixtures("of_gguf")
def test_a_model_of_a_hub(
    run: Run, start_hub: StartHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start_hub(FILES, lfs=set())
    result = run("run", f"{REPO}:q8_0", "Hi", *SCRIPTED)
    assert (result.exit_code, result.stdout) == (0, "Hello, world\n")
    assert f"{REPO}: Q8_0 (5 bytes), into {tmp_path / 'models'}" in result.stderr
    assert "tiny-Q8_0 is served at" in result.stderr
    assert content(tmp_path / "models") == {"tiny-Q8_0/tiny-Q8_0.gguf": b"GGUF8"}
    asked = len(hub.asked)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    for name in (REPO, f"hf.co/{REPO}:Q8_0"):
        assert run("run", name, "Hi", *SCRIPTED).stdout == "Hello, world\n"
    assert len(hub.asked) == asked


@pytest.mark.usefixtures("plugin")
def test_the_download_alone(run: Run, start_hub: StartHub, tmp_path: Path) -> None:
    start_hub(FILES, lfs=set())
    result = run("download", REPO + ":Q4_K_M")
    assert result.stdout == f"{tmp_path / 'models' / 'tiny-Q4_K_M'}\n"
    both = run("download", REPO + ":Q4_K_M", "--include", "*")
    assert (both.exit_code, both.stderr.count("leave out")) == (2, 1)
    assert run("download", "nothing").exit_code == 2


@pytest.mark.usefixtures("plugin")
def test_a_port_that_is_taken(run: Run, tmp_path: Path) -> None:
    (tmp_path / "script").mkdir()
    with closing(listen("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        Path("config.yml").write_text(f"server: {{port: {port}}}", encoding="utf-8")
        result = run("run", "script", "Hi")
        assert (result.exit_code, result.stdout) == (0, "Hello, world\n")
        assert f"port {port} is in use; this server has " in result.stderr
        asked_for = run("run", "script", "Hi", "--port", str(port))
        assert asked_for.exit_code == 1
        assert "is already in use: stop the program" in asked_for.stderr


@pytest.mark.usefixtures("plugin")
def test_open_to_others_it_needs_keys(run: Run, tmp_path: Path) -> None:
    (tmp_path / "script").mkdir()
    result = run("run", "script", "Hi", "--port", "0", "--host", "0.0.0.0")
    assert result.exit_code == 0
    assert result.stdout.endswith("Hello, world\n")  # the chat has a key of its own
    assert "New keys are stored in" in result.stdout
    assert Path("keys.yml").exists()


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nothing",), 2, "there is no file or folder nothing, here or in "),
        (("nothing",), 2, "write owner/repository"),
        (("a/b.gguf",), 2, "there is no file a/b.gguf"),
        ((f"{REPO}:Q2_K",), 1, "there are Q4_K_M (4 bytes), Q8_0 (5 bytes)"),
        (("other/repo",), 1, "other/repo"),
        ((REPO, "--backend", "failing"), 1, "cannot be loaded: out of memory"),
        ((REPO, "--backend", "nope"), 2, "no backend 'nope' is installed"),
    ],
)
def test_what_cannot_be_run(
    run: Run, start_hub: StartHub, arguments: tuple[str, ...], code: int, said: str
) -> None:
    start_hub(FILES, lfs=set(), **({"status": 404} if "other/repo" in arguments else {}))
    result = run("run", *arguments[:1], "Hi", "--port", "0", *arguments[1:])
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr


def test_libraries_that_are_missing(run: Run, start_hub: StartHub, plugin: Path) -> None:
    """Said before anything is downloaded."""
    hub = start_hub(FILES, lfs=set())
    text = plugin.read_text(encoding="utf-8")
    register = 'register("needy", create, requires=["no_such_library"])'
    plugin.write_text(f"{text}    {register}\n", encoding="utf-8")
    result = run("run", REPO, "Hi", "--backend", "needy")
    assert result.exit_code == 1
    assert "the backend needy needs no_such_library, which is not installed" in result.stderr
    assert not hub.fetched


def test_an_extra_that_is_missing(
    run: Run, start_hub: StartHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The exact command; `start.py` runs it itself, here in vain."""
    start_hub(FILES, lfs=set())
    monkeypatch.setattr("enginebay.contract.registers.find_spec", lambda name: None)
    monkeypatch.delenv("ENGINEBAY_START", raising=False)
    command = (
        "python3 start.py install llamacpp, or without a checkout: pip install 'enginebay[llam"
    )
    assert command in run("run", REPO, "Hi").stderr
    installer = tmp_path / "start.py"
    installer.write_text("import sys\nprint(sys.argv)\nsys.exit(3)\n", encoding="utf-8")
    monkeypatch.setenv("ENGINEBAY_START", str(installer))
    result = run("run", REPO, "Hi")
    assert "the backend llamacpp could not be installed" in result.stderr
    installer.write_text("", encoding="utf-8")
    assert command in run("run", REPO, "Hi").stderr


@contextmanager
def start(*arguments: str, stdin: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[str]]:
    """The command as a process, which is killed if it still runs at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-m", "enginebay.cli", "run", *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUTF8": "1", "TERM": "dumb"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@posix
@pytest.mark.usefixtures("plugin")
def test_without_a_terminal_it_only_serves(tmp_path: Path) -> None:
    (tmp_path / "script").mkdir()
    with start("script", "--port", "0") as process:
        assert process.stdout
        shown = [next(process.stdout)]
        while not shown[-1].startswith("Model"):
            shown.append(next(process.stdout))
        assert "script: scripted" in shown[-1]
        found = re.search(r"http://[\d.:]+", "".join(shown))
        assert found
        with httpx2.Client(base_url=found[0], verify=NO_TLS) as http:
            [card] = http.get("/v1/models").json()["data"]
        assert (card["id"], card["state"]) == ("script", "ready")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.fixture(scope="module")
def demo_gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    pytest.importorskip("llama_cpp")
    file = tmp_path_factory.mktemp("demo") / "demo.gguf"
    convert(DEMO_MODEL, file, "q8_0")
    return file.read_bytes()


@pytest.fixture
def hub_with_demo(start_hub: StartHub, demo_gguf: bytes) -> FakeHub:
    name = "demo-Q8_0.gguf"
    third = len(demo_gguf) // 3
    return start_hub(
        {name: demo_gguf, "demo-F32.gguf": b"larger"},
        lfs={name},
        gates={name: threading.Event()},
        breaks={name: [third, 2 * third]},
    )


def arrived() -> int:
    parts = Path("models/tiny-Q8_0/.cache/enginebay").glob("*.part")
    return sum(part.stat().st_size for part in parts)


def more_than(size: int, process: subprocess.Popen[str]) -> Callable[[], bool]:
    return lambda: arrived() > size or process.poll() is not None


@posix
@pytest.mark.thorough
def test_killed_twice_while_it_downloads_it_ends_in_a_chat(
    hub_with_demo: FakeHub, clean_place: Path
) -> None:
    hub = hub_with_demo
    for _ in range(2):
        with start(REPO, "--port", "0") as process:
            asyncio.run(until(more_than(arrived() + 10_000, process)))
            process.kill()
        assert process.returncode == -signal.SIGKILL
    hub.gates.pop("demo-Q8_0.gguf").set()
    master, terminal = os.openpty()
    with start(REPO, "--port", "0", stdin=terminal) as process:
        os.close(terminal)
        os.write(master, b"What is 2 + 3?\n/exit\n")
        out, err = process.communicate(timeout=300)
        os.close(master)
    assert process.returncode == 0, err
    assert "2 + 3 = 5" in out
    assert "is served at http://127.0.0.1:" in err
    ranges = [range_ for name, range_ in hub.fetched if name == "demo-Q8_0.gguf"]
    starts = [int(range_.removeprefix("bytes=").rstrip("-")) if range_ else 0 for range_ in ranges]
    assert len(starts) == 3
    assert starts[0] == 0 < starts[1] < starts[2]  # each goes on where the one before was killed


def test_a_model_without_a_chat_template(run: Run, plugin: Path, tmp_path: Path) -> None:
    """REAL-12: it continues text, and the ways to a chat are said."""
    base = 'lambda s: EngineBackend(lambda: ScriptedEngine([" a time"], chat_template=None))'
    text = plugin.read_text(encoding="utf-8")
    plugin.write_text(f'{text}    register("base", {base})\n', encoding="utf-8")
    (tmp_path / "script").mkdir()
    asked = ("run", "script", "Once upon", "--backend", "base", "--port", "0")
    result = run(*asked)
    assert (result.exit_code, result.stdout) == (0, " a time\n")
    said = " ".join(result.stderr.split())
    assert "script has no chat template, so it continues the text that you enter." in said
    assert "run it with --chat-template and one of: chatml, llama3" in said
    result = run(*asked, "--chat-template", "chatml")
    assert (result.exit_code, result.stdout) == (0, " a time\n")
    assert "has no chat template" not in result.stderr
    refused = run(*asked, "--chat-template", "nothing")
    assert refused.exit_code == 2
    assert "known: chatml, llama3" in refused.stderr
