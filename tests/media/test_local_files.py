"""Files of this machine: MEDIA-31, MEDIA-32, MM-7, LF-7, LF-10, LF-30."""

import os
from pathlib import Path

import pytest

from enginebay.contract.errors import InvalidRequestError
from enginebay.media.load import MediaLoader, MediaSource
from enginebay.media.policy import MediaPolicy
from tests.media.samples import PNG

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs fifos and modes of files")

REFUSED = "this server reads no such file: name one in server.media_dir, by its absolute path (file:///...)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of media among others."""
    folder = tmp_path / "media"
    (folder / "below").mkdir(parents=True)
    (folder / "a b.png").write_bytes(PNG)
    (folder / "below" / "käse.png").write_bytes(PNG)
    (folder / "inside.png").symlink_to(folder / "below" / "käse.png")
    (tmp_path / "media2").mkdir()
    for outside in (tmp_path / "secret.png", tmp_path / "media2" / "secret.png"):
        outside.write_bytes(PNG)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "folder_link").symlink_to(tmp_path)
    (folder / "circle.png").symlink_to(folder / "circle.png")
    (folder / "hanging.png").symlink_to(folder / "missing.png")
    os.mkfifo(folder / "fifo.png")
    (folder / "unreadable.png").write_bytes(PNG)
    (folder / "unreadable.png").chmod(0)
    return folder


async def read(url: str, folder: Path | None, **settings: int) -> bytes:
    loader = MediaLoader(MediaPolicy(folder=folder, **settings))
    try:
        [item] = await loader.load([MediaSource(kind="image", url=url, param="here")])
    finally:
        loader.close()
    return item.data


async def refusal(url: str, folder: Path | None, **settings: int) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        await read(url, folder, **settings)
    assert (caught.value.status, caught.value.param) == (400, "here")
    return caught.value.message


async def test_files_in_the_folder(folder: Path) -> None:
    for name in (
        "a%20b.png",
        "below/k%C3%A4se.png",
        "below/käse.png",
        "inside.png",
        "below/../a b.png",
    ):
        for start in ("file://", "file://localhost", "FILE://"):
            assert await read(f"{start}{folder}/{name}", folder) == PNG


async def test_a_folder_that_is_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert await read(f"file://{tmp_path}/link/a%20b.png", tmp_path / "link") == PNG
    assert await read(f"file://{folder}/a%20b.png", tmp_path / "link") == PNG


OUTSIDE = {
    "above": "/../secret.png",
    "above, escaped": "/%2e%2e/secret.png",
    "above, slash escaped": "/..%2fsecret.png",
    "above, escaped twice": "/%252e%252e/secret.png",
    "above, backslash": "/..\\secret.png",
    "sibling with the same beginning": "/../media2/secret.png",
    "sibling, no slash": "2/secret.png",
    "link that leads out": "/link.png",
    "link to a folder outside": "/folder_link/secret.png",
    "link in a circle": "/circle.png",
    "link to nothing": "/hanging.png",
    "fifo": "/fifo.png",
    "a folder": "/below",
    "the folder itself": "",
    "missing": "/missing.png",
    "missing, in a missing folder": "/no/missing.png",
    "a file as a folder": "/a%20b.png/x",
    "null byte": "/a%20b.png%00",
    "query": "/a%20b.png?x",
    "name too long": "/" + "x" * 300,
    "path too long": "/x" * 5000,
    "bad escape": "/%ff%fe.png",
    "half of a character": "/\ud800.png",
}


@pytest.mark.parametrize("name", OUTSIDE)
async def test_attack_file(name: str, folder: Path) -> None:
    assert await refusal(f"file://{folder}{OUTSIDE[name]}", folder) == REFUSED


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "file:///proc/self/environ",
        "file:///dev/zero",
        "file:///dev/stdin",
        "file://host/etc/passwd",
        "file:a.png",
        "file:",
        "file://",
        "file://[",
    ],
)
async def test_attack_file_elsewhere(url: str, folder: Path) -> None:
    assert await refusal(url, folder) == REFUSED


async def test_attack_file_without_a_folder(folder: Path) -> None:
    for name in ("a%20b.png", "missing.png"):
        assert await refusal(f"file://{folder}/{name}", None) == REFUSED


@pytest.mark.skipif(getattr(os, "geteuid", int)() == 0, reason="root may read every file")
async def test_attack_file_without_permission(folder: Path) -> None:
    assert await refusal(f"file://{folder}/unreadable.png", folder) == REFUSED


async def test_attack_file_too_large(folder: Path) -> None:
    with (folder / "large.png").open("wb") as file:
        file.truncate(2**40)  # a hole, which takes no space
    said = await refusal(f"file://{folder}/large.png", folder, item_bytes=1000)
    assert said == "the picture has more than 1000 bytes"


@pytest.mark.parametrize("kind", ["absolute", "relative", "from home"])
async def test_attack_path_without_a_scheme(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # MEDIA-32
    monkeypatch.chdir(folder)
    path = {"absolute": f"{folder}/a b.png", "relative": "inside.png", "from home": "~/a.png"}
    assert "not valid base64" in await refusal(path[kind], folder)


async def test_attack_path_that_is_base64_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "abcd").write_bytes(PNG)
    monkeypatch.chdir(folder)
    assert "no format that is read here" in await refusal("abcd", folder)
