"""`path: hf://owner/repo:QUANT`, and models of a hub by name (MOD-3)."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import enginebay
from enginebay import Backend, EngineBackend
from enginebay.config.problems import ConfigError
from enginebay.config.schema import Config
from enginebay.contract.backend_settings import BackendSettings
from enginebay.contract.errors import ModelFailedError
from enginebay.models.check_config import check_config
from enginebay.models.downloads import HubName, Places, Wanted, download, find_local, resolve
from enginebay.models.downloads.download import Control
from enginebay.models.files.model_paths import ModelPaths
from enginebay.plugins import Plugins
from enginebay.testing import ScriptedEngine
from tests.downloads.conftest import FILES as CHECKPOINT
from tests.downloads.conftest import StartHub
from tests.downloads.hub import COMMIT, REPO, FakeHub, commit_of
from tests.downloads.test_download import until
from tests.support import DEMO_MODEL, InlineBackend, Server, serve

GGUF = bytes(range(256)) * 40
FILES = {"tiny-Q4_K_M.gguf": GGUF, "tiny-Q8_0.gguf": GGUF * 2, "mmproj-F16.gguf": b"see"}
NAME = "tiny-Q4_K_M.gguf"


def is_gguf(path: Path) -> bool:
    return any("mmproj" not in file.name for file in path.glob("*.gguf"))


def plugins(loaded: list[str], options: list[Any] | None = None) -> Plugins:
    def create(settings: BackendSettings) -> Backend:
        loaded.append(settings.path)
        if options is not None:
            options.append(settings.options)
        return EngineBackend(lambda: ScriptedEngine(["hi"]))

    found = Plugins()
    found.backends("scripted", create, serves=is_gguf)
    found.backends("folders", create)
    return found


def config(folder: Path, path: str = f"hf://{REPO}:Q4_K_M", **more: Any) -> Config:
    server = {"model_dir": str(folder / "models"), **more.pop("server", {})}
    entry = {"name": "tiny", "backend": "scripted", "path": path, "load": "request", **more}
    return Config.model_validate({"models": [entry], "server": server})


def ask(server: Server, **body: Any) -> Any:
    messages = [{"role": "user", "content": "Hi"}]
    return server.http.post("/v1/chat/completions", json={"messages": messages, **body})


def test_the_first_request_downloads_it_and_the_next_start_asks_no_hub(
    start_hub: StartHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start_hub(FILES, lfs=set())
    loaded: list[str] = []
    with serve(config(tmp_path), plugins(loaded)) as server:
        assert not hub.asked
        assert ask(server).json()["choices"][0]["message"]["content"] == "hi"
        assert loaded == [str(tmp_path / "models" / "tiny-Q4_K_M" / NAME)]
        assert {name for name, _ in hub.fetched} == {NAME, "mmproj-F16.gguf"}
        for path in ("/api/tags", "/api/show", "/v1/models", "/v1/models/tiny/inspect"):
            assert server.http.request(
                "POST" if path.endswith("show") else "GET", path, json={"model": "tiny"}
            ).is_success
    asked = len(hub.asked)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with serve(config(tmp_path, load="start"), plugins(loaded)) as server:
        assert ask(server).is_success
    with serve(config(tmp_path, f"hf://{REPO}"), plugins(loaded)) as server:
        assert ask(server).is_success  # any of that repository
    assert len(set(loaded)) == 1
    assert len(hub.asked) == asked


def test_looking_for_its_files_never_holds_up_the_event_loop(
    start_hub: StartHub, tmp_path: Path
) -> None:
    start_hub(FILES, lfs=set())
    looked: list[int] = []

    def serves(path: Path) -> bool:
        looked.append(threading.get_ident())
        return is_gguf(path)

    found = Plugins()
    found.backends("scripted", lambda _: InlineBackend(ScriptedEngine(["hi"])), serves=serves)
    with serve(config(tmp_path), found) as server:
        assert ask(server).is_success

        async def loop() -> int:
            return threading.get_ident()

        assert looked
        assert server.run(loop()) not in looked


def test_progress_is_shown_and_another_model_answers_meanwhile(
    start_hub: StartHub, tmp_path: Path
) -> None:
    hub = start_hub(FILES, lfs=set(), gates={NAME: threading.Event()}, breaks={NAME: [2560]})
    settings = config(tmp_path, load="start")
    other = settings.models[0].model_copy(update={"name": "other", "path": str(tmp_path)})
    settings = settings.model_copy(update={"models": [*settings.models, other]})
    told: list[tuple[str, float]] = []
    with serve(settings, plugins([]), wait=False) as server:
        assert hub.reached.wait(60)

        async def shown() -> None:
            models = server.app.state.services.models
            await until(lambda: models.find("tiny").progress.fraction > 0.2)
            progress = models.find("tiny").progress
            told.append((progress.stage, progress.fraction))

        server.run(shown())
        health = server.http.get("/health").json()
        assert health["models"]["tiny"]["state"] == "loading"
        card = server.http.get("/v1/models/tiny").json()
        assert (card["state"], card["stage"]) == ("loading", "downloading")
        assert 0.2 < card["progress"] < 0.3
        assert ask(server, model="other").is_success
        hub.breaks.clear()
        hub.gates.pop(NAME).set()
        server.run(server.app.state.services.models.wait_until_loaded())
        assert ask(server, model="tiny").is_success
    assert told[0][0] == "downloading"


def test_unloading_stops_it_and_the_next_load_goes_on(start_hub: StartHub, tmp_path: Path) -> None:
    hub = start_hub(FILES, lfs=set(), gates={NAME: threading.Event()}, breaks={NAME: [9000]})
    with serve(config(tmp_path, load="start"), plugins([]), wait=False) as server:
        assert hub.reached.wait(60)
        server.run(stop_once_it_arrives(server, tmp_path, 9000 - 256))
        hub.gates.pop(NAME).set()
        answer = server.http.post("/v1/models/tiny/load")
        assert answer.is_success, answer.text
        assert ask(server).is_success
    ranges = [range_ for name, range_ in hub.fetched if name == NAME]
    assert ranges[0] is None
    assert ranges[-1] is not None
    assert int(ranges[-1].removeprefix("bytes=").rstrip("-")) > 0


async def stop_once_it_arrives(server: Server, folder: Path, size: int) -> None:
    models = server.app.state.services.models
    await until(
        lambda: models.find("tiny").progress.fraction > size / sum(map(len, (GGUF, b"see")))
    )
    await models.unload(models.find("tiny"))
    assert models.find("tiny").state == "unloaded"


def test_models_of_the_same_files_wait_for_each_other(start_hub: StartHub, tmp_path: Path) -> None:
    hub = start_hub(FILES, lfs=set())
    settings = config(tmp_path, load="start")
    twin = settings.models[0].model_copy(update={"name": "twin", "options": {"a": 1}})
    settings = settings.model_copy(update={"models": [*settings.models, twin]})
    with serve(settings, plugins([])) as server:
        for name in ("tiny", "twin"):
            assert ask(server, model=name).is_success
    assert len(hub.fetched) == 2


@pytest.mark.parametrize(
    ("path", "faults", "server", "said"),
    [
        (f"hf://{REPO}:Q2_K", {}, {}, "there are Q4_K_M"),
        (f"hf://{REPO}", {"status": 401, "code": "GatedRepo"}, {}, "HF_TOKEN"),
        (f"hf://{REPO}", {"status": 404, "code": "RepoNotFound"}, {}, "has no repository"),
        (f"hf://{REPO}", {"status": 503}, {}, "503"),
        (f"hf://{REPO}", {}, {"max_download_bytes": 100}, "`max_download_bytes`"),
        (f"hf://{REPO}", {"sizes": {NAME: 10**18}}, {}, "has room for"),
    ],
)
def test_what_goes_wrong_says_what_to_do(
    start_hub: StartHub,
    tmp_path: Path,
    path: str,
    faults: dict[str, Any],
    server: dict[str, Any],
    said: str,
) -> None:
    start_hub(FILES, lfs=set(), **faults)
    with serve(config(tmp_path, path, server=server), plugins([])) as running:
        answer = ask(running)
        assert answer.status_code == 503
        assert said in answer.json()["error"]["message"]
        assert running.http.get("/health").json()["models"]["tiny"]["state"] == "failed"
        again = ask(running)
        assert again.status_code == 503
        assert int(again.headers["retry-after"]) > 0


def test_a_backend_of_folders_gets_a_folder(start_hub: StartHub, tmp_path: Path) -> None:
    start_hub({**CHECKPOINT, **FILES, "model.onnx": b"x"}, lfs=set())
    loaded: list[str] = []
    settings = config(tmp_path, f"hf://{REPO}", backend="folders")
    with serve(settings, plugins(loaded)) as server:
        assert ask(server).is_success
    assert loaded == [str(tmp_path / "models" / "tiny")]
    assert {path.name for path in Path(loaded[0]).iterdir()} == {
        ".cache",
        "config.json",
        "model.safetensors",
        "sub",
    }


def test_options_that_are_paths_may_be_names_too(start_hub: StartHub, tmp_path: Path) -> None:
    lora = {"lora/tiny-french-F16.gguf": b"lora"}
    hub = start_hub({**FILES, "mmproj-F32.gguf": b"see more", **lora}, lfs=set())
    options = {
        "draft_model": f"hf://{REPO}:Q8_0",
        "mmproj": f"hf://{REPO}/mmproj-F32.gguf",
        "adapters": {
            "french": {"path": f"hf://{REPO}/lora/tiny-french-F16.gguf", "scale": 0.5},
            "mine": "loras/mine.gguf",
        },
        "other": f"hf://{REPO}:Q8_0",  # what a backend does with this is its own business
    }
    given: list[Any] = []
    settings = config(tmp_path, options=options, server={"lora_dir": str(tmp_path / "loras")})
    with serve(settings, plugins([], given)) as server:
        assert ask(server).is_success
    models = tmp_path / "models"
    expected = {
        "draft_model": str(models / "tiny-Q8_0" / "tiny-Q8_0.gguf"),
        "mmproj": str(models / "tiny-mmproj-F32" / "mmproj-F32.gguf"),
        "adapters": {
            "french": {
                "path": str(tmp_path / "loras" / "tiny-F16" / "tiny-french-F16.gguf"),
                "scale": 0.5,
            },
            "mine": "loras/mine.gguf",
        },
        "other": f"hf://{REPO}:Q8_0",
    }
    assert given == [expected]
    asked = len(hub.asked)
    with serve(settings, plugins([], given)) as server:
        assert ask(server).is_success
        listed = {card["id"] for card in server.http.get("/v1/models").json()["data"]}
        assert not any("mmproj" in name for name in listed)
    assert given == [expected, expected]
    assert len(hub.asked) == asked


def test_a_lora_of_a_backend_of_folders(start_hub: StartHub, tmp_path: Path) -> None:
    own = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"lora"}
    start_hub({**own, "checkpoint-1/optimizer.pt": b"x", "README.md": b"x"}, lfs=set())
    given: list[Any] = []
    settings = config(
        tmp_path,
        str(tmp_path),
        backend="folders",
        options={"adapters": {"a": f"hf://{REPO}"}},
        server={"lora_dir": str(tmp_path / "loras")},
    )
    with serve(settings, plugins([], given)) as server:
        assert ask(server).is_success
    folder = tmp_path / "loras" / "tiny"
    assert given == [{"adapters": {"a": str(folder)}}]
    assert {path.name for path in folder.iterdir()} == {".cache", *own}


def test_an_option_that_cannot_be_downloaded(start_hub: StartHub, tmp_path: Path) -> None:
    start_hub(FILES, lfs=set())
    settings = config(tmp_path, options={"draft_model": f"hf://{REPO}:Q2_K"})
    with serve(settings, plugins([])) as server:
        answer = ask(server)
        assert answer.status_code == 503
        assert "there are Q4_K_M" in answer.json()["error"]["message"]
        memory = server.http.get("/v1/models/tiny/memory")
        assert memory.status_code < 500, memory.text
    [problem] = check_config(config(tmp_path, options={"mmproj": "hf://x"}), plugins([]))
    assert "models[0].options.mmproj" in str(problem)
    assert "write owner/repository" in str(problem)


async def test_open_downloads_a_name(
    start_hub: StartHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {file.name: file.read_bytes() for file in DEMO_MODEL.iterdir() if file.is_file()}
    hub = start_hub(files, lfs=set())
    monkeypatch.chdir(tmp_path)
    told: list[tuple[str, str, float]] = []
    for name in (f"hf://{REPO}", f"hf://{REPO}:safetensors"):
        opened = enginebay.open(name, report_progress=lambda *each: told.append(each))
        async with opened as model:
            assert model.names == ["tiny"]
            assert (await model.complete("Once", max_tokens=2)).choices[0].text
    assert (tmp_path / "models" / "tiny" / "config.json").is_file()
    assert (REPO, "downloading", 1.0) in told
    assert len(hub.fetched) == len(set(hub.fetched))  # once
    for wrong, error, said in (
        ("hf://x", ConfigError, "write owner/repository"),
        (f"hf://{REPO}:Q2_K", ModelFailedError, "could not be downloaded: .* there are"),
    ):
        with pytest.raises(error, match=said):
            async with enginebay.open(wrong):
                pass


@pytest.mark.parametrize("path", ["hf://", "hf://x", "hf://a/b/c", "hf://a/b:", "hf://a b/c"])
def test_names_that_cannot_be(tmp_path: Path, path: str) -> None:
    [problem] = check_config(config(tmp_path, path), plugins([]))
    assert "write owner/repository" in str(problem)
    assert ModelPaths(config(tmp_path, path), plugins([])).local(path, "scripted") == path


@pytest.mark.parametrize(
    ("text", "repo", "quant"),
    [
        ("a/b", "a/b", ""),
        ("Qwen/Qwen3-8B-GGUF:Q4_K_M", "Qwen/Qwen3-8B-GGUF", "Q4_K_M"),
        ("hf://a/b:4.0bpw", "a/b", "4.0bpw"),
        ("hf.co/a/b:q8_0", "a/b", "q8_0"),
        ("https://huggingface.co/a/b.c/", "a/b.c", ""),
        (" a/b:x/y-Q8_0.gguf ", "a/b", "x/y-Q8_0.gguf"),
        ("hf://a/b/y-Q8_0.gguf", "a/b", "y-Q8_0.gguf"),
        ("hf://a/b/x/y-Q8_0.gguf", "a/b", "x/y-Q8_0.gguf"),
        ("https://huggingface.co/a/b/blob/main/y-Q8_0.gguf", "a/b", "y-Q8_0.gguf"),
        ("https://huggingface.co/a/b/resolve/main/x/y.GGUF", "a/b", "x/y.GGUF"),
    ],
)
def test_names(text: str, repo: str, quant: str) -> None:
    assert HubName.parse(text) == HubName(repo, quant)


Fetch = Callable[..., Path]


@pytest.fixture
def fetch(tmp_path: Path) -> Fetch:
    places = Places(tmp_path, tmp_path / "loras")

    def run(**wanted: Any) -> Path:
        asked = Wanted(**{"repo_id": REPO, **wanted})
        return download(asked, places, lambda _: None, Control())

    return run


def test_a_branch_by_its_name(start_hub: StartHub, tmp_path: Path, fetch: Fetch) -> None:
    exl2 = {"config.json": b"{}", "output.safetensors": b"44"}
    hub = start_hub({"README.md": b""}, lfs=set(), branches={"4.0bpw": exl2, "6.0bpw": exl2})
    assert fetch(quant="4.0bpw") == tmp_path / "tiny-4.0bpw"
    local = find_local(tmp_path, HubName(REPO, "4.0bpw"))
    assert local
    assert local.path == tmp_path / "tiny-4.0bpw"
    assert find_local(tmp_path, HubName(REPO, "6.0bpw")) is None
    assert resolve(Wanted(repo_id=REPO, quant="6.0bpw")).commit == commit_of("6.0bpw")
    for quant in ("", "5.0bpw"):
        with pytest.raises(Exception, match=r"no model|has no") as caught:
            fetch(quant=quant)
        assert "its branches are 4.0bpw, 6.0bpw" in caught.value.message  # type: ignore[attr-defined]
    assert COMMIT not in {commit_of(branch) for branch in hub.branches}


def test_what_is_here(start_hub: StartHub, tmp_path: Path, fetch: Fetch) -> None:
    hub = start_hub({**FILES, **CHECKPOINT}, lfs=set())
    name = HubName(REPO)
    assert find_local(tmp_path, name) is None
    fetch(include=("*Q8_0*",), folder_name="by-hand")
    q8 = find_local(tmp_path, name)
    assert q8
    assert q8.path == tmp_path / "by-hand" / "tiny-Q8_0.gguf"
    assert find_local(tmp_path, HubName(REPO, "Q4_K_M")) is None
    fetch(quant="")
    best = find_local(tmp_path, HubName(REPO.upper()))
    assert best
    assert best.path == tmp_path / "tiny-Q4_K_M" / NAME
    assert find_local(tmp_path, name, "folder") is None
    (tmp_path / "tiny-Q4_K_M" / NAME).write_bytes(b"changed")
    assert find_local(tmp_path, name) == q8
    hub.breaks[NAME] = [3000] * 7
    with pytest.raises(Exception, match="what arrived is kept"):
        fetch(quant="q4_k_m")
    assert find_local(tmp_path, HubName(REPO, "Q4_K_M")) is None
    hub.breaks.clear()
    fetch(quant="q4_k_m")
    assert find_local(tmp_path, name) == best


@pytest.mark.parametrize("quant", ["Q8_0", "Q8_0/model.gguf", "q8_0/model"])
def test_a_file_of_a_folder_is_found_again_by_its_name(
    start_hub: StartHub, tmp_path: Path, fetch: Fetch, quant: str
) -> None:
    start_hub({"Q8_0/model.gguf": GGUF, "Q4_K_M/model.gguf": GGUF * 2}, lfs=set())
    folder = fetch(quant=quant)
    local = find_local(tmp_path, HubName(REPO, quant))
    assert local
    assert local.path == folder / "model.gguf"
    assert find_local(tmp_path, HubName(REPO, "Q4_K_M")) is None


def test_two_owners_of_one_name(start_hub: StartHub, tmp_path: Path, fetch: Fetch) -> None:
    hub: FakeHub = start_hub(FILES, lfs=set())
    fetch(quant="")
    hub.repo = "other/tiny"
    assert fetch(repo_id="other/tiny", quant="") == tmp_path / "other_tiny-Q4_K_M"
    local = find_local(tmp_path, HubName("other/tiny"))
    assert local
    assert local.folder.name == "other_tiny-Q4_K_M"


@pytest.mark.parametrize(
    "state",
    ["", "[]", "{}", '{"repo_id": 3}', '{"repo_id": "%s", "complete": true, "files": {"a": 1}}'],
)
def test_a_state_that_somebody_edited(tmp_path: Path, state: str) -> None:
    file = tmp_path / "tiny" / ".cache" / "enginebay" / "download.json"
    file.parent.mkdir(parents=True)
    file.write_text(state.replace("%s", REPO), encoding="utf-8")
    assert find_local(tmp_path, HubName(REPO)) is None
