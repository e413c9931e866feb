"""SEC-3: files that a running server reads again hold up nobody's stream."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.config import keys as keys_of_config
from enginebay.config.keys import load_keys
from enginebay.config.problems import ConfigError
from enginebay.models import config_change
from enginebay.server import reload
from enginebay.server.access import key_store, keys_file
from enginebay.server.access.key_store import KeyStore
from enginebay.server.api import overrides
from enginebay.server.http.certificate import Certificate
from tests.bystander import Bystander, bystander, paused
from tests.support import plugins_with, scripted

SWITCH = "/v1/sampling/override/switch"
AS_ROOT = {"x-api-key": "key-of-root"}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a config, a preset and keys of a user and an admin."""
    model = "{name: scripted, backend: scripted, path: ., sampling_preset: mine}"
    text = f"server: {{auth: required}}\nmodels: [{model}]\n"
    (tmp_path / "config.yml").write_text(text, encoding="utf-8")
    (tmp_path / "sampler_overrides").mkdir()
    write_preset(tmp_path, 40)
    keys = [keys_file.new_entry(name, f"key-of-{name}") for name in ("anna", "bob")]
    keys.append(keys_file.new_entry("root", "key-of-root", "admin"))
    keys_file.create(tmp_path / "keys.yml", keys)
    return tmp_path


def write_preset(folder: Path, top_k: int) -> None:
    file = folder / "sampler_overrides" / "mine.yml"
    file.write_text(f"top_k:\n  override: {top_k}\n", encoding="utf-8")


@pytest.fixture
def watching(files: Path) -> Iterator[Bystander]:
    from enginebay.config.load import load_config

    config = load_config(files / "config.yml")
    keys = KeyStore(files / "keys.yml")
    plugins = plugins_with(scripted=scripted(["ok"]))
    with bystander(config, plugins, keys=keys, key="key-of-anna") as watching:
        yield watching


def status(watching: Bystander, key: str) -> int:
    headers = {"x-api-key": f"key-of-{key}"}
    return watching.server.http.get("/v1/models", headers=headers).status_code


def until(condition: Callable[[], bool]) -> None:
    """Return when it holds; the server looks at its keys every second."""
    for _ in range(2000):
        if condition():
            return
    pytest.fail("it never holds")


@pytest.mark.parametrize("slow", [(key_store, "load_keys"), (keys_file, "set_hash")], ids=str)
def test_keys_that_change(
    slow: tuple[Any, str], watching: Bystander, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading them, and writing the hashes of those that were in plain text."""
    with paused(monkeypatch, *slow) as pause:
        text = (files / "keys.yml").read_text("utf-8")
        added = "  - name: new\n    key: key-of-new\n    role: user\n"
        (files / "keys.yml").write_text(text.replace("name: bob", "name: ben") + added, "utf-8")
        pause.entered()
        watching.advance(3)
        assert status(watching, "anna") == 200
        assert status(watching, "new") == 401
        pause.go_on()
        until(lambda: status(watching, "new") == 200)
        watching.advance()


def test_a_reload_of_the_config(
    watching: Bystander, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask() -> Any:
        return watching.server.http.post("/v1/config/reload", headers=AS_ROOT).json()

    with ThreadPoolExecutor(1) as thread:
        for owner, name in ((reload, "read_again"), (config_change, "load_preset")):
            write_preset(files, 41)
            with paused(monkeypatch, owner, name) as pause:
                answer = thread.submit(ask)
                pause.entered()
                watching.advance(3)
                pause.go_on()
                assert "error" not in answer.result()


def test_a_preset_that_is_chosen(watching: Bystander, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"preset": "mine", "model": "scripted"}
    post = watching.server.http.post
    for name in ("load_preset", "preset_files"):
        with ThreadPoolExecutor(1) as thread, paused(monkeypatch, overrides, name) as pause:
            answer = thread.submit(lambda: post(SWITCH, json=body, headers=AS_ROOT))
            pause.entered()
            watching.advance(3)
            pause.go_on()
            assert answer.result().json()["selected_preset"] == "mine"


async def test_a_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """An encrypted key of a certificate takes long to read."""
    monkeypatch.setattr("enginebay.server.http.certificate.LOOK_EVERY", 0)
    with paused(monkeypatch, Certificate, "look") as pause:
        looking = asyncio.create_task(Certificate.keep_current(object.__new__(Certificate)))
        await asyncio.to_thread(pause.entered)  # which fails if the loop is the one that waits
        looking.cancel()


WORDS = st.sampled_from(
    [
        *("anna", "bob", "no", "null", "~", "true", "12", "1.5", "0x1f", "010", "1_0", "1:30"),
        *("2026-01-01", "'12'", '"a b"', "", "<<", "=", "0o17", "1e3", "+5", ".inf", "é", "a: b"),
        *("*a", "&a x", "[a, b]", "[]", "[no, 1]", "{a: b}", "- a", "!!str 5", "a # b", "eb-1"),
    ]
)
FIELDS = st.sampled_from(["name", "role", "key", "hash", "models", "max_tokens", "priority", "x"])


@given(st.lists(st.lists(st.tuples(FIELDS, WORDS), min_size=1, max_size=4), max_size=3), st.data())
def test_the_fast_reader_reads_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    entries: list[list[tuple[str, str]]],
    data: st.DataObject,
) -> None:
    """Whatever it accepts, the other reader accepts with the same meaning."""
    lines = ["keys:"]
    for number, entry in enumerate(entries):
        named = [("name", f"n{number}"), ("key", f"k{number}")] if data.draw(st.booleans()) else []
        for index, (name, value) in enumerate([*named, *entry]):
            lines.append(f"{'  - ' if not index else '    '}{name}: {value}")
    path = tmp_path_factory.getbasetemp() / "keys.yml"
    path.write_text("\n".join(lines), encoding="utf-8")
    assert outcome(load_keys, path) == outcome(keys_of_config._load_slowly, path)


def outcome(load: Callable[[Path], Any], path: Path) -> Any:
    try:
        return load(path)
    except ConfigError as error:
        return error.problems


def test_valid_files_need_no_slow_reader(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = files / "keys.yml"
    keys_file.add(path, keys_file.new_entry("carl", "c", models=["a", "b"], priority=-1))
    expected = keys_of_config._load_slowly(path)
    monkeypatch.setattr(keys_of_config, "Document", None)
    assert load_keys(path) == expected
    assert [entry.name for entry in expected] == ["anna", "bob", "root", "carl"]
