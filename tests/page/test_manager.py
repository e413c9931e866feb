"""The view of the models, for admins."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from enginebay.config.schema import Config
from tests.effort import some
from tests.page.support import answers, open_page
from tests.support import Server, plugins_with, scripted, serve

if TYPE_CHECKING:
    from playwright.sync_api import Page

GIB = 2**30
MEMORY: dict[str, Any] = {
    "object": "model.memory",
    "id": "first",
    "parts": [
        {"name": "weights", "ram": 0, "gpu": 20 * GIB},
        {"name": "kv_cache", "ram": 0, "gpu": 5 * GIB},
    ],
    "ram": 0,
    "gpu": 25 * GIB,
    "free_ram": 60 * GIB,
    "free_gpu": 22 * GIB,
    "fits": False,
    "context_length": 32768,
    "gpu_layers": 48,
    "layers": 64,
    "advice": ["`context_length: 8192` saves 3.8 GiB and makes it fit"],
}
FOUND = {
    "object": "list",
    "data": [
        {
            "id": "them/tiny-GGUF",
            "downloads": 1234567,
            "likes": 3,
            "updated": "2026-05-02T10:00:00.000Z",
            "gguf": True,
        }
    ],
}
FILES = {
    "object": "list",
    "repo_id": "them/tiny-GGUF",
    "data": [
        {
            "name": "Q4_K_M",
            "files": ["tiny-Q4_K_M.gguf"],
            "size": 5 * GIB,
            "recommended": True,
            "backend": "llamacpp",
        },
        {
            "name": "Q8_0",
            "files": ["a.gguf", "b.gguf"],
            "size": 8 * GIB,
            "recommended": False,
            "backend": "llamacpp",
        },
    ],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two models of the config, of which one is loaded, and one of the folder."""
    folder: Path = tmp_path_factory.mktemp("models")
    (folder / "lying.gguf").write_bytes(b"GGUF")
    models = [
        {"name": "first", "backend": "scripted", "path": "."},
        {"name": "them/second", "backend": "scripted", "path": ".", "load": "command"},
    ]
    config = Config.model_validate({"models": models, "server": {"model_dir": str(folder)}})
    with serve(config, plugins_with(scripted=scripted(["ok"]))) as server:
        yield server


def manage(page: "Page", server: Server) -> None:
    page.goto(f"{server.url}/#models")
    page.locator("#all-models .card").first.wait_for()


def press(page: "Page", name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def test_all_models_are_in_one_list(page: "Page", server: Server) -> None:
    manage(page, server)
    cards = page.locator("#all-models .card")
    assert cards.locator("h3").all_inner_texts() == ["first", "them/second", "lying.gguf"]
    assert cards.locator(".state").all_inner_texts() == ["ready", "unloaded", "unloaded"]
    assert cards.locator(".source").all_inner_texts() == ["config", "config", "folder"]
    page.get_by_label("Filter models").fill("LYING")
    assert cards.filter(visible=True).locator("h3").all_inner_texts() == ["lying.gguf"]
    page.get_by_label("Filter models").fill("")
    press(page, "Load them/second")
    press(page, "Unload them/second")
    page.get_by_role("button", name="Load them/second").wait_for()


def test_what_a_folder_has_is_offered_in_the_chat(page: "Page", server: Server) -> None:
    """MOD-1: as a card of `/v1/models` with its source."""
    cards = [
        {"id": "first", "state": "ready", "source": "config", "parent": None},
        {"id": "lying.gguf", "state": "unloaded", "source": "folder", "parent": None},
    ]
    answers(page, "v1/models", {"object": "list", "data": cards})
    page.goto(server.url)
    options = page.get_by_role("combobox", name="Model").locator("optgroup option")
    options.first.wait_for(state="attached")
    assert options.all_inner_texts() == ["lying.gguf"]
    page.get_by_role("combobox", name="Model").select_option("lying.gguf")
    page.get_by_role("link", name="Models").click()
    assert page.locator("#all-models h3").all_inner_texts() == [
        "first",
        "them/second",
        "lying.gguf",
    ]


def test_what_is_put_into_the_folder_is_there_at_once(page: "Page", server: Server) -> None:
    """MOD-1: without a reload of the page, in the chat and in the list."""
    open_page(page, server)
    option = page.locator("#model option", has_text="new.gguf")
    assert option.count() == 0
    file = Path(server.app.state.services.config.server.model_dir) / "new.gguf"
    file.write_bytes(b"GGUF")
    option.wait_for(state="attached")
    assert server.http.get("/v1/stats").json()["listed"][-1] == "new.gguf"
    page.get_by_role("link", name="Models").click()
    card = page.locator("#all-models h3", has_text="new.gguf")
    card.wait_for()
    file.unlink()
    card.wait_for(state="detached")
    assert option.count() == 0


def test_memory_is_told_before_loading(page: "Page", server: Server) -> None:
    """ENG-2 on the page: whether it fits, by how much not, and what would."""
    asked = answers(page, "v1/models/them/second/memory", MEMORY)
    manage(page, server)
    press(page, "Memory of them/second")
    card = page.locator("#all-models .card", has_text="them/second")
    card.get_by_text("It does not fit: it needs 3.0 GiB more GPU memory than is free.").wait_for()
    assert [row.split() for row in card.locator("table tr").all_inner_texts()] == [
        ["GPU", "RAM"],
        ["weights", "20.0", "GiB", "0", "MiB"],
        ["KV", "cache", "5.0", "GiB", "0", "MiB"],
        ["together", "25.0", "GiB", "0", "MiB"],
        ["free", "22.0", "GiB", "60.0", "GiB"],
    ]
    assert card.locator(".advice code").inner_text() == "context_length: 8192"
    card.get_by_text("32,768 tokens of context · 48 of 64 layers on the GPU").wait_for()
    answers(page, "v1/models/them/second/memory", {**MEMORY, "fits": True, "gpu": 20 * GIB})
    card.get_by_label("Context length of them/second").fill("8192")
    press(page, "Estimate")
    card.get_by_text("It fits.").wait_for()
    assert asked == [""]
    loads = answers(page, "v1/models/them/second/load", {})
    with page.expect_response("**/load"):
        card.get_by_role("button", name="Load with it").click()
    assert loads == ['{"max_seq_len":8192}']


def test_errors_of_memory_are_the_servers(page: "Page", server: Server) -> None:
    answers(page, "v1/models/first/memory", "its header cannot be read", status=400)
    manage(page, server)
    press(page, "Memory of first")
    page.locator("#all-models .error").get_by_text("its header cannot be read").wait_for()


def test_what_a_server_does_not_have_is_hidden(page: "Page", server: Server) -> None:
    manage(page, server)
    for path in ("v1/models/first/memory", "v1/config/reload", "v1/hub/search"):
        answers(page, path, "there is no such route", status=404)
    press(page, "Memory of first")
    page.get_by_role("button", name="Memory of first").wait_for(state="hidden")
    press(page, "Reload config")
    page.get_by_role("button", name="Reload config").wait_for(state="hidden")
    page.get_by_label("Search the hub").fill("tiny")
    page.keyboard.press("Enter")
    page.get_by_label("Search the hub").wait_for(state="hidden")
    assert page.get_by_text("no such route").filter(visible=True).count() == 0


def test_a_model_is_found_on_the_hub_and_downloaded(page: "Page", server: Server) -> None:
    """MOD-2 on the page, with progress, stopped and resumed."""
    searched = answers(page, "v1/hub/search", FOUND)
    answers(page, "v1/hub/files", FILES)
    manage(page, server)
    page.get_by_label("Search the hub").fill("tiny gguf")
    page.keyboard.press("Enter")
    found = page.get_by_role("list", name="Found on the hub")
    found.get_by_text("1.2M downloads · 3 likes · of 2026-05-02").wait_for()
    assert searched == ["query=tiny+gguf&limit=20"]
    press(page, "Files of them/tiny-GGUF")
    rows = found.locator(".files li p")
    rows.first.wait_for()
    assert rows.all_inner_texts() == [
        "Q4_K_M 5.0 GiB · llamacpp recommended",
        "Q8_0 8.0 GiB · llamacpp · 2 files",
    ]
    asked = []

    def download(route: Any) -> None:
        asked.append(route.request.post_data_json)
        progress = {"file": "tiny-Q4_K_M.gguf", "total": 200, "files": 1}
        begun = {"status": "processing", "completed": 50, "completed_files": 0}
        ended = {"status": "finished", "completed": 200, "completed_files": 1}
        events: list[Any] = [
            [progress | begun, {"error": {"message": "the hub hung up"}}],
            [progress | ended | {"download_path": "/models/tiny"}],
        ][len(asked) - 1]
        body = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        route.fulfill(body=body, content_type="text/event-stream")

    page.route("**/v1/download", download)
    press(page, "Download them/tiny-GGUF:Q4_K_M")
    downloads = page.get_by_role("list", name="Downloads")
    downloads.locator(".error").get_by_text("the hub hung up").wait_for()
    page.reload()  # what is unfinished is remembered
    downloads.get_by_text("Stopped when the page was closed.").wait_for()
    press(page, "Resume them/tiny-GGUF:Q4_K_M")
    downloads.get_by_text("Downloaded to /models/tiny").wait_for()
    assert asked == [{"repo_id": "them/tiny-GGUF", "quant": "Q4_K_M", "stream": True}] * 2
    press(page, "Dismiss them/tiny-GGUF:Q4_K_M")
    assert downloads.locator("li").count() == 0


@pytest.mark.parametrize(
    "name",
    some(
        [
            "nobody/nothing",
            "nobody/nothing:Q4_K_M",
            "hf://nobody/nothing",
            "https://huggingface.co/nobody/nothing/tree/main",
        ],
        ["https://huggingface.co/nobody/nothing/tree/main"],
    ),
)
def test_a_repository_can_be_asked_for_by_its_name(page: "Page", server: Server, name: str) -> None:
    searched = answers(page, "v1/hub/search", {"object": "list", "data": []})
    asked = answers(page, "v1/hub/files", "the hub has no repository nobody/nothing", status=400)
    manage(page, server)
    page.get_by_label("Search the hub").fill(name)
    page.keyboard.press("Enter")
    page.locator(".files .error").get_by_text("no repository nobody/nothing").wait_for()
    page.locator("#hub > p").wait_for(state="hidden")
    assert searched == ["query=nobody%2Fnothing&limit=20"]
    assert asked == ["repo_id=nobody%2Fnothing"]


def test_a_search_that_fails_says_why(page: "Page", server: Server) -> None:
    answers(page, "v1/hub/search", "the hub cannot be reached", status=503)
    manage(page, server)
    page.get_by_label("Search the hub").fill("tiny")
    page.keyboard.press("Enter")
    page.locator("#hub .error").get_by_text("the hub cannot be reached").wait_for()


def test_the_config_is_read_again(page: "Page", server: Server) -> None:
    changes = {
        "object": "config.reload",
        "added": ["new"],
        "removed": [],
        "changed": ["first", "them/second"],
        "needs_restart": ["server.port"],
    }
    manage(page, server)
    said = page.locator("#reload-said")
    answers(page, "v1/config/reload", changes)
    press(page, "Reload config")
    said.get_by_text("Added: new.").wait_for()
    assert said.inner_text().splitlines() == [
        "Added: new.",
        "Changed: first, them/second.",
        "Only after a restart: server.port.",
    ]
    answers(page, "v1/config/reload", {"object": "config.reload", "added": []})
    press(page, "Reload config")
    said.get_by_text("the models are as before").wait_for()
    answers(page, "v1/config/reload", "config.yml:3: no\nconfig.yml:7: such\nkey", status=400)
    press(page, "Reload config")
    said.get_by_text("config.yml:3").wait_for()
    assert said.inner_text().splitlines() == ["config.yml:3: no", "config.yml:7: such", "key"]
