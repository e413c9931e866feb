"""The keys file: what it may say, and changing it."""

import os
import threading
from pathlib import Path

import pytest

from enginebay.config.keys import load_keys
from enginebay.config.problems import ConfigError
from enginebay.server.access import keys_file
from enginebay.server.access.keys import hash_of

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
HASH = hash_of("x")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.yml"


def problems_of(path: Path, text: str) -> list[str]:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_keys(path)
    return [str(problem).removeprefix(f"{path}") for problem in caught.value.problems]


@posix
def test_only_its_owner_can_read_a_new_file(path: Path) -> None:
    before = os.umask(0)
    try:
        keys_file.create(path, [keys_file.new_entry("user", "secret")])
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert "secret" not in path.read_text(encoding="utf-8")
    [entry] = load_keys(path)
    assert (entry.name, entry.role, entry.hash) == ("user", "user", hash_of("secret"))


def test_a_file_is_made_once(path: Path) -> None:
    """Of several that make it at the same time, one does."""
    made: list[str] = []
    barrier = threading.Barrier(8)

    def make(name: str) -> None:
        barrier.wait()
        try:
            keys_file.create(path, [keys_file.new_entry(name, name)])
        except FileExistsError:
            return
        made.append(name)

    threads = [threading.Thread(target=make, args=[f"n{n}"]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [entry.name for entry in load_keys(path)] == made
    assert len(made) == 1


def test_changes_keep_everything_else(path: Path) -> None:
    text = f"""\
# ours
keys:
  # of Anna
  - name: anna
    hash: {HASH}   # made in May
    models: [a, b]
  - {{name: bob, key: 'my own'}}
"""
    path.write_text(text.replace("my own", "my-own"), encoding="utf-8")
    keys_file.set_hash(path, {"bob": hash_of("my-own"), "nobody": HASH})
    keys_file.add(path, keys_file.new_entry("carl", "c", "admin", max_tokens=5, models=None))
    assert (
        path.read_text(encoding="utf-8")
        == f"""\
# ours
keys:
  # of Anna
  - name: anna
    hash: {HASH}   # made in May
    models: [a, b]
  - {{name: bob, hash: {hash_of("my-own")}}}
  - name: carl
    role: admin
    hash: {hash_of("c")}
    max_tokens: 5
"""
    )
    keys_file.remove(path, "bob")
    assert [entry.name for entry in load_keys(path)] == ["anna", "carl"]
    keys_file.remove(path, "anna")
    keys_file.remove(path, "carl")
    assert load_keys(path) == []
    keys_file.add(path, keys_file.new_entry("dora", "d"))
    assert [entry.name for entry in load_keys(path)] == ["dora"]
    assert [file.name for file in path.parent.iterdir()] == ["keys.yml"]


def test_a_key_becomes_its_hash_where_it_stands(path: Path) -> None:
    path.write_text("keys:\n- name: a\n  key: mine  # old\n  max_tokens: 3\n", encoding="utf-8")
    keys_file.set_hash(path, {"a": HASH})
    lines = path.read_text(encoding="utf-8").split("\n")
    assert lines == [
        "keys:",
        "  - name: a",
        f"    hash: {HASH} # old",
        "    max_tokens: 3",
        "",
    ]


@posix
@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_changes_keep_the_mode_and_links(path: Path, mode: int) -> None:
    real = path.with_name("real.yml")
    keys_file.create(real, [keys_file.new_entry("a", "a")])
    real.chmod(mode)
    path.symlink_to(real)
    keys_file.add(path, keys_file.new_entry("b", "b"))
    assert path.is_symlink()
    assert real.stat().st_mode & 0o777 == mode
    assert [entry.name for entry in load_keys(path)] == ["a", "b"]


def test_two_programs_do_not_change_it_at_once(path: Path) -> None:
    keys_file.create(path, [])
    lock = path.with_name("keys.yml.lock")
    lock.touch()
    with pytest.raises(ConfigError, match=r"another program is changing it.*delete .*\.lock"):
        keys_file.add(path, keys_file.new_entry("a", "a"))
    lock.unlink()
    keys_file.add(path, keys_file.new_entry("a", "a"))


def test_a_change_that_fails_changes_nothing(path: Path) -> None:
    path.write_text("keys: {broken", encoding="utf-8")
    with pytest.raises(Exception, match="expected"):
        keys_file.add(path, keys_file.new_entry("a", "a"))
    assert path.read_text(encoding="utf-8") == "keys: {broken"
    assert [file.name for file in path.parent.iterdir()] == ["keys.yml"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "",
            ": the file is empty; it must begin with `keys:`. Delete it, and `enginebay keys add "
            "NAME` creates one",
        ),
        ("- a", ": the file does not begin with a key; it must begin"),
        ("key: []", ":1: key: unknown key; did you mean 'keys'?"),
        ("keys:\n - name: a", ":2: keys[0]: must have either `hash` or `key`"),
        (f"keys:\n - {{name: a, key: b, hash: '{HASH}'}}", ":2: keys[0]: must have either"),
        (f"keys:\n - name: a b\n   hash: {HASH}", ":2: keys[0].name: must match pattern"),
        (f"keys:\n - hash: {HASH}", ":2: keys[0].name: is missing: Name of the key's owner"),
        ("keys:\n - name: a\n   key: b c", ":3: keys[0].key: an API key must be ASCII"),
        ("keys:\n - name: a\n   hash: md5", ":3: keys[0].hash: must match pattern"),
        (
            f"keys:\n - name: a\n   hash: {HASH}\n   request_per_minute: 3",
            ":4: keys[0].request_per_minute: unknown key; did you mean 'requests_per_minute'?",
        ),
        (
            f"keys:\n - name: a\n   hash: {HASH}\n   max_tokens: 0",
            ":4: keys[0].max_tokens: must be",
        ),
        (f"keys:\n - name: a\n   hash: {HASH}\n   role: boss", ":4: keys[0].role: must be"),
        (f"keys:\n - &a\n   name: a\n   hash: {HASH}\n - *a", "another key already has this name"),
        ("keys:\n\t- a", ": the line is indented with a tab"),
    ],
)
def test_what_is_wrong_and_where(path: Path, text: str, problem: str) -> None:
    [found] = problems_of(path, text)
    assert problem in found


def test_keys_are_not_shown_in_problems(path: Path) -> None:
    found = problems_of(path, "keys:\n - name: a\n   key: [hidden]\n - name: b\n   key: hid den\n")
    assert len(found) == 2
    assert "hid" not in "".join(found)
