"""Dark and light."""

from typing import TYPE_CHECKING, Any, cast

from tests.conftest import ServeScripted
from tests.page.support import open_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

BACKGROUND = "each => getComputedStyle(each).backgroundColor"
CLEAR = "rgba(0, 0, 0, 0)"
LIGHT, DARK = "rgb(244, 245, 243)", "rgb(19, 21, 23)"


def ground(page: "Page") -> Any:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_theme_is_the_devices_or_the_users(page: "Page", serve_scripted: ServeScripted) -> None:
    open_page(page, serve_scripted(["ok"]))
    button = page.get_by_role("button", name="Theme")
    for device, colour in (("dark", DARK), ("light", LIGHT)):
        page.emulate_media(color_scheme=cast("Any", device))
        assert ground(page) == colour
    assert page.evaluate("localStorage.length") == 0
    button.click()
    assert button.inner_text() == "Theme: light"
    page.emulate_media(color_scheme="dark")
    assert ground(page) == LIGHT
    button.click()
    assert button.inner_text() == "Theme: dark"
    page.emulate_media(color_scheme="light")
    page.reload()
    assert ground(page) == DARK
    assert button.inner_text() == "Theme: dark"
    button.click()
    assert button.inner_text() == "Theme: auto"
    assert ground(page) == LIGHT
    assert page.evaluate("localStorage.length") == 0


def test_the_documentation_has_the_same(page: "Page", serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"])

    def docs() -> str:
        return str(page.locator("#swagger-ui .swagger-ui").first.evaluate(BACKGROUND))

    page.emulate_media(color_scheme="dark")
    page.goto(f"{server.url}/docs")
    page.locator(".opblock").first.wait_for()
    assert docs() == "rgb(28, 32, 34)"
    page.emulate_media(color_scheme="light")
    assert docs() == CLEAR
    page.goto(server.url)
    button = page.get_by_role("button", name="Theme")
    while button.inner_text() != "Theme: dark":
        button.click()
    page.goto(f"{server.url}/docs")
    page.locator(".opblock").first.wait_for()
    assert docs() == "rgb(28, 32, 34)"
