"""Takes `docs/page.png`, the picture of the page in the README.

python -m tests.page.picture    # writes the file; needs Chromium
"""

import random

from playwright.sync_api import Page, sync_playwright

from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from tests.chromium import ARGUMENTS, CHROMIUM
from tests.page.support import answered, open_page, say
from tests.support import DEMO_MODEL, REPOSITORY, Server, serve

FILE = REPOSITORY / "docs" / "page.png"
MODEL = {"name": "enginebay-demo", "backend": "hf", "path": str(DEMO_MODEL)}
QUESTIONS = ("Hello! What is Enginebay?", "What is 7 + 5?")


def busy(server: Server) -> None:
    """Ask for a few short answers, so that the plots have something to show."""
    for number in range(40):
        server.openai.completions.create(
            model="enginebay-demo",
            prompt="Once upon a time",
            max_tokens=random.Random(number).randrange(20, 200),
        )


def take(page: Page, server: Server) -> None:
    """Chat on the page and take its picture."""
    open_page(page, server)
    for number, question in enumerate(QUESTIONS):
        say(page, question)
        answered(page, number)
        busy(server)
    page.locator("details.reasoning summary").last.click()
    page.mouse.move(0, 0)
    page.screenshot(path=FILE)


def main() -> None:
    """Serve the demo model and open the page in a window of its own."""
    config = Config.model_validate({"models": [MODEL], "server": {"auth": "none"}})
    with serve(config, Plugins()) as server, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        take(browser.new_page(viewport={"width": 1200, "height": 720}), server)
        browser.close()


if __name__ == "__main__":
    main()
