"""`enginebay keys`, and the keys that a server starts with."""

import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from enginebay.server.access.key_store import KeyStore
from enginebay.server.access.keys import find_key, hash_of
from tests.cli.conftest import Run, StartServing
from tests.support import plugins_with, scripted, scripted_config, serve

KEY = re.compile(r"eb-[\w-]{43}")
posix = pytest.mark.skipif(os.name == "nt", reason="needs a terminal that a program can make")


@pytest.fixture(autouse=True)
def config() -> None:
    Path("config.yml").write_text("server: {port: 0}\n", encoding="utf-8")


def known(key: str) -> str | None:
    """Name of the key's owner."""
    found = find_key([key.encode()], KeyStore(Path("keys.yml")).known())
    return found and found.name


def test_add_list_rotate_remove(run: Run) -> None:
    added = run("keys", "add", "anna", "--models", "a, b", "--rpm", "60", "--max-tokens", "5")
    assert added.exit_code == 0
    key = added.stdout.rstrip()
    assert KEY.fullmatch(key)
    assert "shown only once" in added.stderr
    assert key not in Path("keys.yml").read_text(encoding="utf-8")
    assert known(key) == "anna"
    root = run("keys", "add", "root", "--admin", "--concurrent", "2", "--priority", "-1")
    listed = run("keys", "list").stdout
    assert [line.split() for line in listed.splitlines()[1:]] == [
        ["anna", "user", "a,", "b", "60", "5"],
        ["root", "admin", "all", "2", "-1"],
    ]
    assert key not in listed
    assert hash_of(key) not in listed
    new = run("keys", "rotate", "anna").stdout.rstrip()
    assert (known(new), known(key), known(root.stdout.rstrip())) == ("anna", None, "root")
    assert run("keys", "list").stdout == listed
    assert run("keys", "remove", "anna").exit_code == 0
    assert (known(new), known(root.stdout.rstrip())) == (None, "root")


def test_a_key_for_a_model_that_the_config_does_not_have(run: Run) -> None:
    model = "{name: mine, aliases: [other], backend: b, path: p}"
    Path("config.yml").write_text(f"models: [{model}]\n", encoding="utf-8")
    assert "the config" not in run("keys", "add", "anna", "--models", "mine,other").stderr
    added = run("keys", "add", "bob", "--models", "mine,mime")
    assert known(added.stdout.rstrip()) == "bob"
    assert "the config has no model 'mime', which" in added.stderr


def test_config_check_reads_the_keys_file(run: Run) -> None:
    assert run("config", "check").exit_code == 0
    Path("keys.yml").write_text("keys:\n- {name: anna, key: s3cret, modles: [a]}\n", "utf-8")
    result = run("config", "check")
    assert result.exit_code == 2
    assert result.stderr == (
        f"{Path('keys.yml').absolute()}:2: keys[0].modles: unknown key; did you mean 'models'?\n"
    )


def test_what_cannot_be_done(run: Run) -> None:
    run("keys", "add", "anna")
    before = Path("keys.yml").read_text(encoding="utf-8")
    for arguments, message in (
        (("add", "anna"), "already has a key of anna; `enginebay keys rotate anna`"),
        (("add", "a b"), "name: must match pattern"),
        (("add", "bob", "--models", ","), "models[0]: "),
        (("remove", "bob"), "has no key of bob; it has keys of: anna"),
        (("rotate", "bob"), "has no key of bob; it has keys of: anna"),
    ):
        result = run("keys", *arguments)
        assert (result.exit_code, result.stdout) == (1, ""), arguments
        assert message in result.stderr
    Path("keys.yml.lock").touch()
    assert "another program is changing it" in run("keys", "add", "bob").stderr
    assert Path("keys.yml").read_text(encoding="utf-8") == before
    Path("keys.yml").write_text("keys: [{name: a, hsh: b}]", encoding="utf-8")
    for arguments in (("list",), ("add", "bob"), ("remove", "a"), ("rotate", "a")):
        result = run("keys", *arguments)
        assert result.exit_code == 2
        assert "keys.yml:1: keys[0].hsh: unknown key; did you mean 'hash'?" in result.stderr


def test_the_file_is_where_the_config_says(run: Run) -> None:
    Path("there").mkdir()
    text = "server: {keys_file: secret/my-keys.yml}"
    Path("there/config.yml").write_text(text, encoding="utf-8")
    failed = run("keys", "add", "anna", "--config", "there/config.yml")
    assert "my-keys.yml cannot be written: No such file" in failed.stderr
    Path("there/secret").mkdir()
    assert run("keys", "add", "anna", "--config", "there/config.yml").exit_code == 0
    assert Path("there/secret/my-keys.yml").exists()


@posix
@pytest.mark.parametrize(
    ("auth", "made"), [("auto", ("admin",)), ("required", ("user", "admin"))], ids=str
)
def test_the_first_start_shows_new_keys_on_a_terminal(auth: str, made: tuple[str, ...]) -> None:
    """Once, and not in the log; a user's only if users need one."""
    import pty

    Path("config.yml").write_text(f"server: {{port: 0, auth: {auth}}}\n", encoding="utf-8")

    shown, path = [], Path("log")
    for _ in range(2):
        ours, theirs = pty.openpty()
        with (
            path.open("w", encoding="utf-8") as log,
            subprocess.Popen(
                [sys.executable, "-m", "enginebay.cli", "serve"], stdout=theirs, stderr=log
            ) as serving,
        ):
            os.close(theirs)
            text = ""
            while "Model " not in text:
                text += os.read(ours, 65_536).decode()
            serving.terminate()
        os.close(ours)
        shown.append(re.sub(r"\x1b\[[0-9;]*m", "", text))
        assert "eb-" not in path.read_text(encoding="utf-8")
    keys = dict(re.findall(r"^(\w+) +(eb-\S+)", shown[0], re.MULTILINE))
    assert {name: known(key) for name, key in keys.items()} == {name: name for name in made}
    assert "the only time they are shown" in shown[0]
    assert "eb-" not in shown[1]
    assert stat.S_IMODE(Path("keys.yml").stat().st_mode) == 0o600


@pytest.mark.parametrize("auth", ["auto", "required"])
def test_a_server_that_nobody_could_use_does_not_start(
    start_serving: StartServing, auth: str
) -> None:
    Path("keys.yml").write_text("keys: []", encoding="utf-8")
    text = f"server: {{port: 0, host: 0.0.0.0, auth: {auth}}}"
    Path("config.yml").write_text(text, encoding="utf-8")
    serving = start_serving()
    assert serving.process.wait(60) == 1
    assert serving.log.endswith(
        f"every request needs an API key, but there is none in {Path('keys.yml').absolute()} or "
        "under `server.api_keys`: create one with `enginebay keys add NAME`, or allow everyone who "
        "can connect with `server.auth: none` in the config\n"
    )


def test_a_broken_keys_file(start_serving: StartServing) -> None:
    Path("keys.yml").write_text("keys:\n  - name: a\n", encoding="utf-8")
    serving = start_serving()
    assert serving.process.wait(60) == 2
    assert serving.log.endswith("keys.yml:2: keys[0]: must have either `hash` or `key`\n")


@posix
def test_a_public_address_needs_keys(start_serving: StartServing) -> None:
    serving = start_serving("--host", "0.0.0.0")
    serving.lines_until("NAME is one of")
    lines = serving.lines_until("Model ")
    url = lines[0].split()[4].rstrip(";")
    about = "API keys    needed for everything; 2 known (1 admin), "
    assert any(line.startswith(about) for line in lines)
    assert httpx2.get(f"{url}/v1/models").status_code == 401
    assert httpx2.get(f"{url}/health").status_code != 401
    assert "warning" not in serving.log
    assert serving.interrupt() == 0


@posix
@pytest.mark.parametrize(
    ("auth", "warning", "line"),
    [
        ("none", "can use, load and unload models without a key", "none needed: everyone"),
        ("admin", "can use the models without a key", "needed for admin routes only"),
    ],
)
def test_a_public_address_without_keys_is_warned_of(
    start_serving: StartServing, auth: str, warning: str, line: str
) -> None:
    text = f"server:\n  port: 0\n  host: 0.0.0.0\n  auth: {auth}\n"
    Path("config.yml").write_text(text, encoding="utf-8")
    serving = start_serving()
    lines = serving.lines_until("Model ")
    assert any(text.startswith(f"API keys    {line}") for text in lines)
    pattern = rf"^warning: .*{warning}, because .*config.yml line 4"
    assert re.search(pattern, serving.log, re.MULTILINE)
    assert Path("keys.yml").exists() is (auth == "admin")
    assert serving.interrupt() == 0


def test_a_start_that_fails_creates_nothing(start_serving: StartServing) -> None:
    """EVE-2: neither keys nor anything else."""
    Path("config.yml").unlink()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for settings in (
            f"host: 127.0.0.1, port: {port}",
            f"host: 127.0.0.1, port: {port}, auth: required",
            f"port: 0, second_port: {port}",
            f"port: {port}, usage_file: usage.db, capture: captured",
        ):
            Path("config.yml").write_text(f"server: {{{settings}}}\n", encoding="utf-8")
            before = sorted(path.name for path in Path().iterdir())
            serving = start_serving()
            assert serving.process.wait(60) == 1
            assert serving.process.stdout
            assert serving.process.stdout.read() == ""
            assert "already in use" in serving.log
            made = {path.name for path in Path().iterdir()} - {*before, serving.errors.name}
            assert not made
            assert not Path("keys.yml").exists()


@posix
def test_a_socket_goes_with_a_start_that_fails(start_serving: StartServing) -> None:
    Path("keys.yml").write_text("keys: 3\n", encoding="utf-8")
    Path("config.yml").write_text("server: {unix_socket: here.sock}\n", encoding="utf-8")
    serving = start_serving()
    assert serving.process.wait(60) == 2
    assert "keys.yml" in serving.log
    assert not Path("here.sock").exists()


@posix
@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("command", [("add", "bob"), ("rotate", "anna"), ("remove", "anna")])
def test_a_full_disk(run: Run, command: tuple[str, str], there: bool) -> None:
    """SEC-12: the file is named, and stays as it was."""
    if there or command[0] != "add":
        run("keys", "add", "anna")
    before = Path("keys.yml").read_bytes() if Path("keys.yml").exists() else None
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
        "from enginebay.cli import main; sys.argv[0] = 'enginebay'; main()"
    )
    failed = subprocess.run(
        [sys.executable, "-c", limited, "keys", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    path = Path("keys.yml").absolute()
    assert (failed.returncode, failed.stdout) == (1, "")
    assert f"{path} cannot be written: File too large; no key was changed" in failed.stderr
    assert (path.read_bytes() if path.exists() else None) == before
    assert not Path("keys.yml.lock").exists()


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ("{port: 0}", "Requests without a key are still accepted, except on admin routes."),
        ("{auth: admin, host: 0.0.0.0}", "Requests without a key are still accepted"),
        ("{auth: none}", "No request needs a key, because `server.auth` is `none`."),
        ("{auth: required}", "Every request needs a key."),
        ("{host: 0.0.0.0}", "Every request needs a key."),
        ("{api_keys: [one]}", "Every request needs a key."),
    ],
)
def test_adding_a_key_tells_who_needs_one(run: Run, server: str, said: str) -> None:
    # EVE-1
    Path("config.yml").write_text(f"server: {server}\n", encoding="utf-8")
    told = " ".join(run("keys", "add", "me").stderr.split())
    assert said in told
    open_to_some = "Every" not in said
    how = "To require a key for every request, set `server.auth: required` in config.yml."
    assert (how in told) is open_to_some


@pytest.mark.parametrize(
    ("auth", "key", "said"),
    [
        ("required", (), "no API key was sent"),
        ("required", ("--api-key", "wrong"), "this API key is not valid"),
        ("admin", (), None),
        ("admin", ("--api-key", "wrong"), "this API key is not valid"),
    ],
)
def test_commands_without_a_key(
    run: Run, auth: str, key: tuple[str, ...], said: str | None
) -> None:
    """EVE-7: they send none, rather than one that is wrong."""
    config = scripted_config(server={"auth": auth, "api_keys": ["one"]})
    with serve(config, plugins_with(scripted=scripted(["ok"]))) as server:
        answered = run("chat", "--url", server.url, "hi", *key)
        if said is None:
            assert (answered.exit_code, answered.stdout) == (0, "ok\n")
            return
        for failed in (answered, run("conformance", server.url, *key)):
            assert failed.exit_code == 1
            assert said in " ".join(failed.stderr.split())
