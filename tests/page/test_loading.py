"""Loading and unloading models on the page."""

from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING

import pytest

from enginebay.config.schema import Config
from enginebay.testing import ScriptedEngine
from tests.page.support import answered, open_page, say
from tests.page.test_safety import Broken
from tests.support import DEMO_MODEL, plugins_with, scripted, serve

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_models_are_loaded_unloaded_and_switched(page: "Page") -> None:
    models = [
        {"name": "first", "backend": "scripted", "path": "."},
        {"name": "second/of two", "backend": "scripted", "path": ".", "load": "command"},
    ]
    config = Config.model_validate({"models": models})
    with serve(config, plugins_with(scripted=scripted(["ok"]))) as server:
        open_page(page, server)
        health = page.locator("#health")

        def press(what: str) -> None:
            page.get_by_role("button", name=what, exact=True).click()

        health.get_by_text("1 unloaded, 1 ready").wait_for()
        press("Load second/of two")
        health.get_by_text("2 ready").wait_for()
        press("Unload first")
        health.get_by_text("1 unloaded, 1 ready").wait_for()
        press("Unload second/of two")
        health.get_by_text("2 unloaded, 0 ready").wait_for()
        press("Load first")
        health.get_by_text("1 unloaded, 1 ready").wait_for()
        press("Switch second/of two")
        page.get_by_role("button", name="Unload second/of two", exact=True).wait_for()
        health.get_by_text("1 unloaded, 1 ready").wait_for()
        states = [model.state for model in server.app.state.services.models.all()]
        assert states == ["unloaded", "ready"]


@pytest.mark.thorough
def test_a_load_that_fails_says_why(page: "Page") -> None:
    models = [{"name": "gone", "backend": "broken", "path": ".", "load": "command"}]
    plugins = plugins_with(broken=lambda settings: Broken(ScriptedEngine([])))
    with serve(Config.model_validate({"models": models}), plugins) as server:
        open_page(page, server)
        page.get_by_role("button", name="Load gone").click()
        page.locator("#running .card .error").get_by_text("<img").wait_for()
        page.locator("#running .card").get_by_text("failed", exact=True).wait_for()


@pytest.mark.thorough
def test_a_load_that_is_refused_says_why(page: "Page") -> None:
    models = [
        {"name": "first", "backend": "scripted", "path": ".", "pinned": True},
        {"name": "second", "backend": "scripted", "path": ".", "load": "command"},
    ]
    config = Config.model_validate({"models": models, "loading": {"max_loaded_models": 1}})
    with serve(config, plugins_with(scripted=scripted(["ok"]))) as server:
        open_page(page, server)
        second = page.locator("#running .card", has_text="second")
        second.get_by_role("button", name="Load second").click()
        second.locator(".error").get_by_text("first").wait_for()


@pytest.mark.thorough
def test_a_model_that_is_loaded_on_command_only(page: "Page") -> None:
    models = [{"name": "only", "backend": "scripted", "path": ".", "load": "command"}]
    config = Config.model_validate({"models": models})
    with serve(config, plugins_with(scripted=scripted(["ok"]))) as server:
        open_page(page, server)
        say(page, "Hi")
        error = answered(page).locator(".error").inner_text()
        assert error.startswith("The model cannot answer now: model 'only' is not loaded")
        assert "Try again in" not in error, "that would change nothing"


@pytest.mark.thorough
def test_the_default_model_is_marked(page: "Page") -> None:
    models = [
        {"name": name, "backend": "scripted", "path": ".", "load": load, "aliases": [f"my-{name}"]}
        for name, load in (("first", "start"), ("second", "command"))
    ]
    config = Config.model_validate({"models": models})
    with serve(config, plugins_with(scripted=scripted(["ok"]))) as server:
        open_page(page, server)
        chips = page.locator("#running .chips")
        chips.nth(0).get_by_text("default").wait_for()
        assert chips.all_inner_texts() == ["default\nmy-first", "my-second"]
        page.get_by_role("button", name="Switch second").click()
        chips.nth(1).get_by_text("default").wait_for()
        assert chips.all_inner_texts() == ["my-first", "default\nmy-second"]


@pytest.mark.thorough
def test_the_folder_of_models_is_offered(page: "Page", tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    copytree(DEMO_MODEL, tmp_path / "tiny", dirs_exist_ok=True)
    config = Config.model_validate({"models": [], "server": {"model_dir": str(tmp_path)}})
    with serve(config, plugins_with()) as server:
        page.goto(f"{server.url}/#models")
        card = page.locator("#all-models .card", has_text="tiny")
        card.get_by_role("button", name="Load tiny").wait_for()
        assert "unloaded" in card.inner_text()
        assert card.locator(".source").inner_text() == "folder"
