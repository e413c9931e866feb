"""`enginebay keys`, and the keys that a server starts with."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from core.server.access.key_store import KeyStore
from core.server.access.keys import find_key, hash_of
from tests.cli.conftest import Run, StartServing

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
def test_the_first_start_shows_new_keys_on_a_terminal() -> None:
    """Once, and not in the log."""
    import pty

    shown, path = [], Path("log")
    for _ in range(2):
        ours, theirs = pty.openpty()
        with (
            path.open("w", encoding="utf-8") as log,
            subprocess.Popen(
                [sys.executable, "-m", "core.cli", "serve"], stdout=theirs, stderr=log
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
    assert {name: known(key) for name, key in keys.items()} == {"user": "user", "admin": "admin"}
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
