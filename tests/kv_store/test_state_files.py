"""Files of saved states: whole or not believed, whatever has happened to them (ENG-8)."""

import os
import secrets
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enginebay.contract.errors import BackendUnavailableError
from enginebay.engine.kv_store.prefix_index import packed
from enginebay.engine.kv_store.seals import DamagedError, Encryption, read_secret
from enginebay.engine.kv_store.state_file import ForeignError, Header, StateFiles

PLAIN = StateFiles()
SECRET = StateFiles(partial(Encryption, b"0123456789abcdef"))
OTHER_SECRET = StateFiles(partial(Encryption, b"another key, not the first"))
TOKENS = packed([5, 7, -3, 250_000])


def header_of(state: bytes) -> Header:
    return Header({"model": "abc", "layout": "rows"}, b"key", TOKENS, len(state))


def is_believed(files: StateFiles, path: Path, expected: Header) -> bool:
    try:
        files.state(path, expected)
    except (DamagedError, ForeignError):
        return False
    return True


@pytest.mark.parametrize("files", [PLAIN, SECRET])
@pytest.mark.parametrize("size", [0, 1, 1000, (16 << 20) - 1, 16 << 20, (16 << 20) + 7])
def test_what_was_written_is_read(files: StateFiles, size: int, tmp_path: Path) -> None:
    state = secrets.token_bytes(size)
    path = tmp_path / "a.kv"
    files.write(path, header_of(state), memoryview(state))
    assert files.header(path) == header_of(state)
    assert files.state(path, header_of(state)) == state
    assert [file.name for file in tmp_path.iterdir()] == ["a.kv"]
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("files", [PLAIN, SECRET])
def test_every_changed_byte_is_noticed(files: StateFiles, tmp_path: Path) -> None:
    state = secrets.token_bytes(300)
    path = tmp_path / "a.kv"
    files.write(path, header_of(state), memoryview(state))
    good = path.read_bytes()
    for at in range(len(good)):
        for flipped in (1, 0x80, 0xFF):
            path.write_bytes(good[:at] + bytes([good[at] ^ flipped]) + good[at + 1 :])
            assert not is_believed(files, path, header_of(state)), at


@pytest.mark.parametrize("files", [PLAIN, SECRET])
def test_every_truncation_and_addition_is_noticed(files: StateFiles, tmp_path: Path) -> None:
    state = secrets.token_bytes(300)
    path = tmp_path / "a.kv"
    files.write(path, header_of(state), memoryview(state))
    good = path.read_bytes()
    for end in range(len(good)):
        path.write_bytes(good[:end])
        assert not is_believed(files, path, header_of(state)), end
    for more in (b"\0", b"x" * 100, good):
        path.write_bytes(good + more)
        assert not is_believed(files, path, header_of(state))


@given(junk=st.binary(max_size=400))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_junk_is_not_believed(junk: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.kv"
    for start in (b"", b"EBAYKV01", b"EBAYKV01sha256\0\0" + bytes(32) + (9).to_bytes(8, "little")):
        path.write_bytes(start + junk)
        assert not is_believed(PLAIN, path, header_of(b""))
        assert not is_believed(SECRET, path, header_of(b""))


@pytest.mark.parametrize("files", [PLAIN, SECRET])
def test_pieces_of_other_files_are_not_taken(files: StateFiles, tmp_path: Path) -> None:
    """Both files are whole, and say the same of themselves."""
    states = [secrets.token_bytes(500), secrets.token_bytes(500)]
    paths = [tmp_path / "a.kv", tmp_path / "b.kv"]
    for path, state in zip(paths, states, strict=True):
        files.write(path, header_of(state), memoryview(state))
    first, second = (path.read_bytes() for path in paths)
    for border in range(len(first)):
        mixed = first[:border] + second[border:]
        paths[0].write_bytes(mixed)
        whole = mixed in (first, second)
        assert is_believed(files, paths[0], header_of(states[0])) == whole


def test_a_file_must_be_the_one_that_is_meant(tmp_path: Path) -> None:
    path = tmp_path / "a.kv"
    PLAIN.write(path, header_of(b"abc"), memoryview(b"abc"))
    other = Header({"model": "abc", "layout": "rows"}, b"another key", TOKENS, 3)
    assert not is_believed(PLAIN, path, other)


def test_encrypted_files_show_nothing_and_need_their_key(tmp_path: Path) -> None:
    state = b"what was said" * 10
    path = tmp_path / "a.kv"
    SECRET.write(path, header_of(state), memoryview(state))
    content = path.read_bytes()
    assert b"what was said" not in content
    assert b"model" not in content
    assert TOKENS not in content
    with pytest.raises(DamagedError, match="another key"):
        OTHER_SECRET.header(path)
    with pytest.raises(ForeignError, match="it is encrypted"):
        PLAIN.header(path)
    PLAIN.write(path, header_of(state), memoryview(state))
    with pytest.raises(ForeignError, match="not encrypted"):
        SECRET.header(path)


def test_key_files(tmp_path: Path) -> None:
    file = tmp_path / "cache.key"
    with pytest.raises(BackendUnavailableError, match="openssl rand"):
        read_secret(file)
    file.write_text("short\n", encoding="utf-8")
    with pytest.raises(BackendUnavailableError, match="5 bytes"):
        read_secret(file)
    file.write_text("0123456789abcdef\n", encoding="utf-8")
    assert read_secret(file) == b"0123456789abcdef"


WRITER = """
import sys
from pathlib import Path
from tests.kv_store.test_state_files import PLAIN, SECRET, header_of
folder, number = Path(sys.argv[1]), 0
state = memoryview(bytes(range(256)) * (1 << 16))
print("ready", flush=True)
while True:
    files = (PLAIN, SECRET)[number % 2]
    files.write(folder / f"{number:05}.kv", header_of(state), state)
    number += 1
"""


@pytest.mark.thorough
def test_a_writer_that_is_killed_leaves_only_whole_files(tmp_path: Path) -> None:
    """ENG-8: `kill -9` at any moment leaves no file that is believed and is not whole."""
    state = bytes(range(256)) * (1 << 16)
    for turn in range(25):
        folder = tmp_path / str(turn)
        folder.mkdir()
        command = [sys.executable, "-c", WRITER, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path.cwd()) as writer:
            assert writer.stdout
            writer.stdout.readline()
            # Somewhere in the writing of a file, another place each time.
            while not (unfinished := list(folder.glob("*.tmp"))):
                pass
            with suppress(FileNotFoundError):
                while unfinished[0].stat().st_size < len(state) * turn / 25:
                    pass
            os.kill(writer.pid, signal.SIGKILL)
        for path in folder.glob("*.kv"):
            files = (PLAIN, SECRET)[int(path.stem) % 2]
            assert files.state(path, header_of(state)) == state
