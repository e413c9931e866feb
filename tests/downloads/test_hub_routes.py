"""`GET /v1/hub/search` and `/v1/hub/files`, and `quant` of `POST /v1/download`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apis.ollama_support import key_store
from tests.downloads.conftest import StartHub
from tests.downloads.hub import COMMIT, REPO
from tests.downloads.test_download import content
from tests.support import Server, plugins_with, scripted, scripted_config, serve

FILES = {
    "README.md": b"x",
    "tiny-Q8_0.gguf": b"GGUF" * 5,
    "tiny-Q4_K_M-00001-of-00002.gguf": b"GGUF",
    "tiny-Q4_K_M-00002-of-00002.gguf": b"GGUF2",
    "mmproj-F16.gguf": b"GGUFm",
}
EXL2 = b'{"quantization_config": {"quant_method": "exl2"}}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    config = scripted_config(server={"model_dir": str(folder), "auth": "admin"})
    plugins = plugins_with(scripted=scripted(["hi"]))
    with serve(config, plugins, keys=key_store()) as running:
        running.http.headers["Authorization"] = "Bearer admin"
        yield running


def test_search(start_hub: StartHub, server: Server) -> None:
    found = {"id": "a/b-GGUF", "downloads": 5, "likes": 2, "tags": ["gguf", "x"], "private": False}
    other = {"id": "a/c", "lastModified": "2026-01-02T03:04:05.000Z", "tags": None}
    hub = start_hub(found=[found, other, {"id": "too/many"}])
    answer = server.http.get("/v1/hub/search", params={"query": "b & c", "limit": 2})
    assert answer.json() == {
        "object": "list",
        "data": [
            {"id": "a/b-GGUF", "downloads": 5, "likes": 2, "updated": "", "gguf": True},
            {
                "id": "a/c",
                "downloads": 0,
                "likes": 0,
                "updated": "2026-01-02T03:04:05.000Z",
                "gguf": False,
            },
        ],
    }
    assert "search=b+%26+c&limit=2" in hub.searched[0]


def test_the_models_of_a_repository(start_hub: StartHub, server: Server) -> None:
    start_hub(FILES, lfs=set())
    answer = server.http.get("/v1/hub/files", params={"repo_id": REPO}).json()
    assert (answer["object"], answer["repo_id"]) == ("list", REPO)
    assert answer["data"] == [
        {
            "name": "Q4_K_M",
            "files": [*list(FILES)[2:4], "mmproj-F16.gguf"],
            "size": 14,
            "recommended": True,
            "backend": "llamacpp",
        },
        {
            "name": "Q8_0",
            "files": ["tiny-Q8_0.gguf", "mmproj-F16.gguf"],
            "size": 25,
            "recommended": False,
            "backend": "llamacpp",
        },
    ]


def test_the_backend_of_a_checkpoint(start_hub: StartHub, server: Server) -> None:
    checkpoint = {"config.json": EXL2, "output.safetensors": b"x"}
    start_hub(lfs=set(), branches={"4.0bpw": checkpoint})
    params = {"repo_id": REPO, "revision": "4.0bpw"}
    [model] = server.http.get("/v1/hub/files", params=params).json()["data"]
    assert (model["name"], model["backend"]) == ("safetensors", "exllamav2")
    [model] = server.http.get("/v1/hub/files", params={"repo_id": REPO}).json()["data"]
    assert model["backend"] == "hf"
    start_hub({"README.md": b"x"}, lfs=set())
    assert server.http.get("/v1/hub/files", params={"repo_id": REPO}).json()["data"] == []


@pytest.mark.parametrize("path", ["search?query=x", f"files?repo_id={REPO}"])
@pytest.mark.parametrize(
    ("faults", "status", "said"),
    [
        ({"status": 500}, 502, "the hub answered 500"),
        ({"status": 429}, 502, "try again later"),
        ({"status": 401}, (403, 404), "HF_TOKEN"),
        ({"status": 403}, 403, "HF_TOKEN"),
        ({"found": {"not": "a list"}, "sizes": dict.fromkeys(FILES, "x")}, 502, "hub"),
        ({"found": [["no", "object"]], "commit": "no commit"}, 502, "hub"),
    ],
)
def test_a_hub_that_does_not_say(
    start_hub: StartHub,
    server: Server,
    path: str,
    faults: dict[str, object],
    status: int | tuple[int, ...],
    said: str,
) -> None:
    start_hub(FILES, lfs=set(), **faults)
    answer = server.http.get(f"/v1/hub/{path}")
    assert answer.status_code in (status if isinstance(status, tuple) else (status,))
    error = answer.json()["error"]
    assert said in error["message"]
    assert error["code"]


@pytest.mark.parametrize(
    "said",
    [
        "",
        "<!DOCTYPE html><title>Sign in</title>",
        "null",
        "3",
        '"text"',
        "[" * 100_000,
        "[3]",
        "[null]",
        '[["id", "a"]]',
        '[{"id": "a/b", "downloads": "many"}]',
        '[{"id": "a/b", "tags": 3}]',
        '[{"modelId": "a/b"}]',
        '{"data": []}',
        '{"error": "no such thing"}',
        '{"id": 3, "sha": 4}',
        '{"id": "a/b", "sha": "COMMIT", "siblings": 3}',
        '{"id": "a/b", "sha": "COMMIT", "siblings": [3]}',
        '{"id": "a/b", "sha": "COMMIT", "siblings": [{}]}',
        '{"id": "a/b", "sha": "COMMIT", "siblings": [{"rfilename": null}]}',
        '{"id": "a/b", "sha": "COMMIT", "siblings": [{"rfilename": 3, "blobId": "COMMIT"}]}',
        '{"id": "a/b", "sha": "COMMIT", "siblings": [{"rfilename": "x", "lfs": 3}]}',
        '{"id": "a/b", "sha": "COMMIT", "siblings": [{"rfilename": "x", "lfs": {"a": 3}}]}',
        '{"id": "a/b", "sha": "COMMIT", "cardData": 3, "config": 3, "lastModified": 3}',
    ],
    ids=lambda said: said[:70],
)
def test_what_is_no_hub(start_hub: StartHub, server: Server, said: str) -> None:
    """A mirror, or a page to sign in, at its address."""
    start_hub(says=said.replace("COMMIT", COMMIT).encode())
    download = {"repo_id": REPO, "quant": "Q4_K_M"}
    for answer in (
        server.http.get("/v1/hub/search?query=x"),
        server.http.get(f"/v1/hub/files?repo_id={REPO}"),
        server.http.post("/v1/download", json=download),
    ):
        assert answer.status_code == 502, answer.text
        error = answer.json()["error"]
        assert error["code"] == "hub_error"
        assert "hub" in error["message"]
        assert len(error["message"]) < 400


def test_no_hub(start_hub: StartHub, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    answer = server.http.get("/v1/hub/search?query=x")
    assert answer.status_code == 502
    assert "cannot be reached" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("files", 400),
        ("files?repo_id=", 400),
        ("files?repo_id=a/b/c", 400),
        ("files?repo_id=../x", 400),
        ("files?repo_id=" + "x" * 300, 400),
        ("search?limit=0", 400),
        ("search?limit=x", 400),
        ("search?query=" + "x" * 300, 400),
    ],
)
def test_bad_questions(start_hub: StartHub, server: Server, path: str, status: int) -> None:
    start_hub()
    answer = server.http.get(f"/v1/hub/{path}")
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["search", f"files?repo_id={REPO}"])
def test_only_admins_ask(server: Server, path: str) -> None:
    for headers, status in (({"Authorization": "Bearer user"}, 403), ({"Authorization": ""}, 401)):
        assert server.http.get(f"/v1/hub/{path}", headers=headers).status_code in (status, 403)


def test_download_of_a_quant(start_hub: StartHub, server: Server, folder: Path) -> None:
    # MOD-2
    start_hub(FILES, lfs=set())
    answer = server.http.post("/v1/download", json={"repo_id": REPO, "quant": "q4_k_m"})
    assert answer.json() == {"download_path": str(folder / "tiny-Q4_K_M")}
    names = {*list(FILES)[2:4], "mmproj-F16.gguf"}
    assert content(folder / "tiny-Q4_K_M") == {name: FILES[name] for name in names}
    body = {"repo_id": REPO, "quant": "Q8_0", "folder_name": "mine"}
    assert server.http.post("/v1/download", json=body).json()["download_path"].endswith("/mine")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"quant": "Q2_K"}, "there are Q4_K_M (14 bytes), Q8_0 (25 bytes)"),
        ({"quant": "Q8_0", "include": ["*"]}, "leave out `include` and `exclude`"),
        ({"quant": 4}, "quant"),
        ({"quant": "x" * 300}, "quant"),
    ],
)
def test_a_quant_that_is_not_there(
    start_hub: StartHub, server: Server, body: dict[str, object], said: str
) -> None:
    start_hub(FILES, lfs=set())
    answer = server.http.post("/v1/download", json={"repo_id": REPO, **body})
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
