"""Pulling models as Ollama's clients do, and what they cannot do here."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from enginebay.models.downloads.hub import Hub
from tests.apis.ollama_support import key_store, lines, ollama_server, refused
from tests.downloads.conftest import FILES, StartHub
from tests.downloads.conftest import start_hub as start_hub
from tests.downloads.hub import REPO
from tests.downloads.test_download import content
from tests.support import Server

NAME, LONG_NAME = f"hf.co/{REPO}", f"huggingface.co/{REPO}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folders = {"model_dir": str(tmp_path / "models"), "lora_dir": str(tmp_path / "loras")}
    with ollama_server(server=folders) as running:
        yield running


@pytest.mark.parametrize("name", ["model", "name"])
def test_a_served_model_is_there(server: Server, name: str) -> None:
    # OLL-20
    pulled = lines(server.http.post("/api/pull", json={name: "scripted:latest"}))
    assert pulled == [{"status": "pulling manifest"}, {"status": "success"}]
    answer = server.http.post("/api/pull", json={name: "scripted", "stream": False})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"status": "success"}
    odd = server.http.post("/api/pull", json={"model": "scripted", "insecure": True})
    assert odd.headers["x-unsupported-params"] == "insecure"


@pytest.mark.parametrize("stream", [True, False])
def test_others_are_not_found(server: Server, stream: bool) -> None:
    answer = server.http.post("/api/pull", json={"model": "llama3.2", "stream": stream})
    error = refused(answer, 404)
    assert "model 'llama3.2' not found; available: scripted" in error
    assert "huggingface.co/OWNER/REPOSITORY" in error


def test_a_download(start_hub: StartHub, server: Server, tmp_path: Path) -> None:
    start_hub()
    first, *more, last = lines(server.http.post("/api/pull", json={"model": NAME}))
    assert last == {"status": "success"}
    total = sum(map(len, FILES.values()))
    for line in (first, *more):
        assert line.keys() == {"status", "digest", "total", "completed"}
        assert line["status"].startswith("pulling ")
        assert line["digest"].startswith("sha256:")
        assert line["completed"] <= line["total"] == total
    assert more[-1]["completed"] == total
    assert content(tmp_path / "models" / "tiny") == FILES
    whole = server.http.post("/api/pull", json={"model": LONG_NAME, "stream": False})
    assert whole.json() == {"status": "success"}


def test_a_tag_chooses_files(start_hub: StartHub, server: Server, tmp_path: Path) -> None:
    files = {"m-Q4_K_M.gguf": b"GGUF", "m-Q8_0.gguf": b"GGUF8", "README.md": b"x"}
    start_hub(files, lfs=set())
    assert lines(server.http.post("/api/pull", json={"model": f"{NAME}:q4_k_m"}))
    assert content(tmp_path / "models" / "tiny-Q4_K_M").keys() == {"m-Q4_K_M.gguf"}
    assert lines(server.http.post("/api/pull", json={"model": f"{NAME}:latest"}))
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["tiny-Q4_K_M"]
    error = refused(server.http.post("/api/pull", json={"model": f"{NAME}:Q2_K"}))
    assert "has no 'Q2_K'" in error
    assert "Q8_0" in error


def test_a_download_that_fails_later(
    start_hub: StartHub, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a mistake")

    start_hub()
    monkeypatch.setattr(Hub, "fetch", broken)
    *_, last = lines(server.http.post("/api/pull", json={"model": NAME}))
    assert last == {"error": "POST /api/pull failed; see the server's log"}


def test_only_admins_download(start_hub: StartHub, tmp_path: Path) -> None:
    start_hub()
    settings = {"auth": "required", "model_dir": str(tmp_path / "models")}
    with ollama_server(server=settings, keys=key_store()) as server:
        for name, status in (("user", 404), ("admin", 200)):
            headers = {"Authorization": f"Bearer {name}"}
            answer = server.http.post("/api/pull", json={"model": NAME}, headers=headers)
            assert answer.status_code == status
            assert (tmp_path / "models" / "tiny").is_dir() == (status == 200)


@pytest.mark.parametrize(
    ("method", "path", "advice"),
    [
        ("DELETE", "/api/delete", "config"),
        ("POST", "/api/copy", "aliases"),
        ("POST", "/api/create", "like"),
        ("POST", "/api/push", "hub"),
        ("POST", "/api/blobs/sha256:00", "model_dir"),
    ],
)
def test_what_there_is_not(server: Server, method: str, path: str, advice: str) -> None:
    # OLL-6
    for sent in (b"", b"{}", b'{"model": "scripted"}'):
        assert advice in refused(server.http.request(method, path, content=sent), 404)
    assert server.http.head("/api/blobs/sha256:00").status_code == 404


def test_the_root_says_that_it_is_running(server: Server) -> None:
    for headers in ({}, {"Accept": "application/json"}):
        answer = server.http.get("/", headers=headers)
        assert answer.text == "Ollama is running"
        assert server.http.head("/", headers=headers).status_code == 200
    page = server.http.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert page.text.startswith("<!doctype html>")


def test_without_the_api_there_is_only_the_page() -> None:
    with ollama_server(server={"apis": ["responses"]}) as server:
        assert server.http.get("/").text.startswith("<!doctype html>")
        assert server.http.get("/api/tags").status_code == 404
