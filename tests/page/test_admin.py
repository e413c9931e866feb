"""What admins do on the page."""

from pathlib import Path
from typing import TYPE_CHECKING

from tests.api.test_loras import Adapted
from tests.page.support import answered, open_page, say
from tests.support import engine_backend, plugins_with, scripted_config, serve

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_loras_are_applied(page: "Page", tmp_path: Path) -> None:
    for name in ("pirate", "poet", "bad"):
        (tmp_path / f"{name}.gguf").write_text(name)
    config = scripted_config(server={"lora_dir": str(tmp_path)})
    with serve(config, plugins_with(scripted=engine_backend(Adapted))) as server:
        open_page(page, server)
        section = page.locator("#loras-section")
        section.locator("summary").click()
        section.get_by_label("pirate.gguf", exact=True).check()
        section.get_by_label("Scaling of pirate.gguf").fill("0.5")
        section.get_by_label("poet.gguf", exact=True).check()
        section.get_by_role("button", name="Apply to scripted").click()
        section.get_by_text("Loaded: pirate.gguf, poet.gguf.").wait_for()
        say(page, "Hi")
        assert answered(page).locator(".said").inner_text() == "pirate*0.5+poet*1"
        section.get_by_label("bad.gguf", exact=True).check()
        section.get_by_role("button", name="Apply to scripted").click()
        section.get_by_text("made for another model").wait_for()
        for box in section.get_by_role("checkbox").all():
            box.uncheck()
        section.get_by_role("button", name="Apply to scripted").click()
        section.get_by_text("Unloaded:").wait_for()
        say(page, "Hi")
        assert answered(page, 1).locator(".said").inner_text() == "plain"
