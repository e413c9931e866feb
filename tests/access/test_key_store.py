"""Keys that change while the server runs."""

import asyncio
import logging
import os
from pathlib import Path

import pytest

from enginebay.config.keys import Key
from enginebay.config.problems import ConfigError
from enginebay.server.access import keys_file
from enginebay.server.access.key_store import KeyStore
from enginebay.server.access.keys import digest_of, find_key


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yml"
    keys_file.create(path, [keys_file.new_entry("a", "key-of-a")])
    return path


def look(store: KeyStore) -> None:
    """Do what the server does every second."""
    asyncio.run(store.look())


def names(store: KeyStore) -> list[str]:
    return [key.name for key in store.known()]


def test_changes_count_after_a_look(path: Path) -> None:
    store = KeyStore(path, [Key("fixed", digest_of("f"))])
    assert names(store) == ["fixed", "a"]
    keys_file.add(path, keys_file.new_entry("b", "key-of-b"))
    assert names(store) == ["fixed", "a"]
    look(store)
    assert names(store) == ["fixed", "a", "b"]
    keys_file.remove(path, "a")
    look(store)
    assert names(store) == ["fixed", "b"]
    assert find_key([b"key-of-a"], store.known()) is None
    assert find_key([b"key-of-b"], store.known()) is not None


def test_the_file_is_not_read_again_without_a_change(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = KeyStore(path)
    monkeypatch.setattr(store, "_load", None)
    for _ in range(5):
        look(store)
        assert names(store) == ["a"]


def test_a_file_that_appears(tmp_path: Path) -> None:
    path = tmp_path / "keys.yml"
    store = KeyStore(path)
    assert names(store) == []
    keys_file.add(path, keys_file.new_entry("a", "a"))
    look(store)
    assert names(store) == ["a"]


@pytest.mark.parametrize("text", ["keys:\n - name: b\n   hsh: x\n", "keys: [", "", None])
def test_a_broken_file_keeps_the_last_good_keys(
    path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    store = KeyStore(path)
    good = path.read_text(encoding="utf-8")
    if text is None:
        path.unlink()
    else:
        path.write_text(text, encoding="utf-8")
    for _ in range(3):
        look(store)
        assert names(store) == ["a"]
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert logged[0].startswith(str(path))
    assert len(logged) == len(set(logged)), "each once"
    if text and "hsh" in text:
        assert f"{path}:3: keys[0].hsh: unknown key; did you mean 'hash'?" in logged
    path.write_text(good.replace("name: a", "name: c"), encoding="utf-8")
    look(store)
    assert names(store) == ["c"]


def test_a_broken_file_at_the_start(path: Path) -> None:
    path.write_text("keys: 3", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"keys: must be a list"):
        KeyStore(path)


def test_keys_of_ones_own(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They count after a look, and are hashes from then on."""
    store = KeyStore(path)
    own = "a-key-that-i-have-chosen"
    with path.open("a", encoding="utf-8") as file:
        file.write(f"  - name: mine\n    key: {own}\n    role: admin\n    concurrent_requests: 2\n")
        file.write("  - name: short\n    key: abc\n")
    look(store)
    found = find_key([own.encode()], store.known())
    assert found is not None
    assert (found.name, found.role, found.concurrent_requests) == ("mine", "admin", 2)
    text = path.read_text(encoding="utf-8")
    assert own not in text
    assert "abc" not in text.replace(digest_of("abc").hex(), "")
    look(store)
    assert find_key([own.encode()], store.known()) == found
    [warning] = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warning.startswith("the key of short is short")
    assert own not in caplog.text


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_a_file_that_others_can_read(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.chmod(0o644)
    KeyStore(path)
    assert f"others can read {path}: chmod 600" in caplog.text


def test_a_file_that_cannot_be_changed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another program holds it: the key counts, and that it stays readable is said."""
    with path.open("a", encoding="utf-8") as file:
        file.write("  - name: mine\n    key: long-enough-to-be-good\n")
    path.with_name("keys.yml.lock").touch()
    assert names(KeyStore(path)) == ["a", "mine"]
    assert f"keys remain in plain text in {path}" in caplog.text
