"""What admins do on the page."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.access.test_access import Start
from tests.access.test_access import start as start
from tests.api.test_loras import Adapted
from tests.downloads.conftest import StartHub
from tests.downloads.conftest import start_hub as start_hub
from tests.downloads.hub import REPO, TOKEN
from tests.downloads.test_download import until
from tests.page.support import answered, open_page, say
from tests.support import (
    engine_backend,
    plugins_with,
    scripted,
    scripted_config,
    serve,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.mark.thorough
def test_loras_are_applied(page: "Page", tmp_path: Path) -> None:
    for name in ("pirate", "poet", "bad"):
        (tmp_path / f"{name}.gguf").write_text(name)
    config = scripted_config(server={"lora_dir": str(tmp_path)})
    with serve(config, plugins_with(scripted=engine_backend(Adapted))) as server:
        open_page(page, server)
        page.get_by_role("link", name="Models").click()
        section = page.locator("#loras-section")
        section.locator("summary").click()
        section.get_by_label("pirate.gguf", exact=True).check()
        section.get_by_label("Scaling of pirate.gguf").fill("0.5")
        section.get_by_label("poet.gguf", exact=True).check()
        section.get_by_role("button", name="Apply to scripted").click()
        section.get_by_text("Loaded: pirate.gguf, poet.gguf.").wait_for()
        page.get_by_role("link", name="Chat").click()
        say(page, "Hi")
        assert answered(page).locator(".said").inner_text() == "pirate*0.5+poet*1"
        page.get_by_role("link", name="Models").click()
        section.get_by_label("bad.gguf", exact=True).check()
        section.get_by_role("button", name="Apply to scripted").click()
        section.get_by_text("made for another model").wait_for()
        for box in section.get_by_role("checkbox").all():
            box.uncheck()
        section.get_by_role("button", name="Apply to scripted").click()
        section.get_by_text("Unloaded:").wait_for()
        page.get_by_role("link", name="Chat").click()
        say(page, "Hi")
        assert answered(page, 1).locator(".said").inner_text() == "plain"


@pytest.mark.thorough
def test_a_model_is_downloaded(page: "Page", tmp_path: Path, start_hub: StartHub) -> None:
    start_hub()
    folders = {"model_dir": str(tmp_path / "models"), "lora_dir": str(tmp_path / "loras")}
    config = scripted_config(server=folders)
    with serve(config, plugins_with(scripted=scripted(["ok"]))) as server:
        open_page(page, server)
        page.get_by_role("link", name="Models").click()
        section = page.locator("#download-section")
        downloads = page.get_by_role("list", name="Downloads")
        section.locator("summary").click()
        section.get_by_label("Repository").fill("nobody/nothing")
        section.get_by_role("button", name="Download").click()
        downloads.get_by_role("status").get_by_text("nobody/nothing").wait_for()
        downloads.get_by_role("button", name="Dismiss").click()
        section.get_by_label("Repository").fill(REPO)
        section.get_by_label("Hub token").fill(TOKEN)
        section.get_by_role("button", name="Download").click()
        downloads.get_by_text(f"Downloaded to {tmp_path / 'models'}").wait_for()
        assert section.get_by_label("Hub token").input_value() == ""
        assert not downloads.get_by_role("progressbar").is_visible()
        page.locator("#all-models .card", has_text="tiny").wait_for()


@pytest.mark.thorough
def test_a_download_is_stopped_and_resumed(
    page: "Page", tmp_path: Path, start_hub: StartHub
) -> None:
    gate = threading.Event()
    name = "model.safetensors"
    hub = start_hub(gates={name: gate}, breaks={name: [6000]})
    config = scripted_config(server={"model_dir": str(tmp_path / "models")})
    with serve(config, plugins_with(scripted=scripted(["ok"]))) as server:
        page.goto(f"{server.url}/#models")
        page.get_by_text("Download by name").click()
        page.get_by_label("Repository").fill(REPO)
        page.get_by_role("button", name="Download", exact=True).click()
        downloads = page.get_by_role("list", name="Downloads")
        assert hub.reached.wait(20)
        downloads.get_by_role("button", name=f"Stop {REPO}").click()
        downloads.get_by_text("Stopped.").wait_for()
        running = server.app.state.services.downloads
        server.run(until(lambda: all(control.stopped for control in running._controls)))
        gate.set()
        server.run(until(lambda: not running._taken))
        hub.gates.clear()
        downloads.get_by_role("button", name=f"Resume {REPO}").click()
        downloads.get_by_text("Downloaded to").wait_for()
        assert (name, "bytes=6000-") in hub.fetched


def test_what_is_for_admins_is_shown_to_admins(page: "Page", start: Start) -> None:
    server = start({"anna": {"models": ["small"]}}).server
    page.goto(server.url)
    dialog = page.get_by_role("dialog")

    def use(key: str) -> None:
        dialog.get_by_label("Key", exact=True).fill(key)
        dialog.get_by_role("button", name="Use key").click()

    dialog.get_by_text("This server requires an API key").wait_for()
    use("key-of-anna")
    page.locator("#running .card", has_text="small").wait_for()
    assert page.locator("#running .card").count() == 1
    assert not page.get_by_role("button", name="Unload").is_visible()
    assert not page.get_by_role("link", name="Models").is_visible()
    page.goto(f"{server.url}/#models")
    page.get_by_text("Models are managed with an admin key").wait_for()
    assert not page.locator("#download-section").is_visible()
    page.get_by_role("link", name="Chat").click()
    say(page, "Hi")
    assert answered(page).locator(".said").inner_text() == "ok"
    page.get_by_role("button", name="Key").click()
    use("key-of-root")
    page.get_by_role("button", name="Unload big").wait_for()
    page.get_by_role("link", name="Models").click()
    page.locator("#download-section").wait_for()


def test_who_has_no_key_learns_what_there_is_for_admins(page: "Page", start: Start) -> None:
    """As at the first start, when only the routes of admins need a key."""
    server = start({}, auth="admin").server
    open_page(page, server)
    page.get_by_role("link", name="Models").click()
    page.get_by_text("Models are managed with an admin key").wait_for()
    page.get_by_role("button", name="Enter a key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Key", exact=True).fill("key-of-root")
    dialog.get_by_role("button", name="Use key").click()
    page.locator("#all-models .card").first.wait_for()
    assert not page.get_by_role("button", name="Enter a key").is_visible()
