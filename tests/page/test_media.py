"""Pictures and sounds on the page: added, seen, sent, kept."""

import base64
import io
import json
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from enginebay.testing.scripted import MEDIA
from tests.conftest import ServeScripted
from tests.effort import some
from tests.media.samples import encoded, tone, wav
from tests.page.support import answered, open_page, say

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

SEES = {"media": ["image"]}
Size = tuple[int, int]
ANEW: list[tuple[Size, str, Size]] = [
    ((4100, 1024), "PNG", (2048, 512)),
    ((3, 2), "BMP", (3, 2)),
    ((9, 3000), "GIF", (7, 2048)),
]
GIVE = """([how, files]) => {
  const dataTransfer = new DataTransfer();
  for (const [name, type, data] of files) {
    const bytes = Uint8Array.from(atob(data), (each) => each.charCodeAt(0));
    dataTransfer.items.add(new File([bytes], name, { type }));
  }
  const options = { bubbles: true, cancelable: true };
  const event = how === "paste"
    ? new ClipboardEvent("paste", { ...options, clipboardData: dataTransfer })
    : new DragEvent(how, { ...options, dataTransfer });
  return document.activeElement.dispatchEvent(event);
}"""


def count(prompt: str, index: int) -> list[str]:
    """Where the items stand in the prompt, and how many tokens they have."""
    return [prompt.replace(MEDIA, "@")]


def picture(name: str, size: Size) -> dict[str, Any]:
    """A PNG, as a file for a file input."""
    data = encoded(Image.new("RGB", size, "red"), "PNG")
    return {"name": name, "mimeType": "image/png", "buffer": data}


def noise(name: str) -> dict[str, Any]:
    """A PNG of nearly 2 MB, which is sent as it is."""
    pixels = random.Random(name).randbytes(800 * 800 * 3)
    data = encoded(Image.frombytes("RGB", (800, 800), pixels), "PNG")
    return {"name": name, "mimeType": "image/png", "buffer": data}


def choose(page: "Page", *files: dict[str, Any], button: str = "Add pictures") -> None:
    """Add files by the button."""
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name=button).click()
    chooser.value.set_files(files)  # type: ignore[arg-type]


def give(page: "Page", how: str, *files: dict[str, Any]) -> bool:
    """Paste or drop files; whether the browser would go on and do what it does with them."""
    sent = [(f["name"], f["mimeType"], base64.b64encode(f["buffer"]).decode()) for f in files]
    return bool(page.evaluate(GIVE, [how, sent]))


def attached(page: "Page", names: Sequence[str]) -> "Locator":
    """The thumbnails, once they are these."""
    thumbnails = page.get_by_role("list", name="To be sent").get_by_role("img")
    page.wait_for_function(
        """(names) => [...document.querySelectorAll("#attached img")]
            .map((each) => each.complete && each.naturalWidth && each.alt).join() === names""",
        arg=",".join(names),
    )
    return thumbnails


def sent_in(page: "Page", act: "Any") -> list[dict[str, Any]]:
    """The messages of the request that `act` has the page send."""
    with page.expect_request("**/v1/chat/completions") as request:
        act()
    messages: list[dict[str, Any]] = json.loads(request.value.post_data or "")["messages"]
    return messages


def opened(url: str) -> Image.Image:
    """The picture of a data URL."""
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))


def test_pictures_by_button_paste_and_drop(page: "Page", serve_scripted: ServeScripted) -> None:
    """In their order, some removed again; seen before they are sent, and in the chat."""
    open_page(page, serve_scripted(count, engine=SEES))
    choose(page, picture("a.png", (9, 9)), picture("b.png", (9, 9)))
    attached(page, ["a.png", "b.png"])
    assert not give(page, "paste", picture("c.png", (9, 9)))
    attached(page, ["a.png", "b.png", "c.png"])
    assert not give(page, "dragover", picture("d.png", (9, 9)))
    assert not give(page, "drop", picture("d.png", (9, 9)))
    attached(page, ["a.png", "b.png", "c.png", "d.png"])
    page.get_by_role("button", name="Remove b.png").click()
    page.keyboard.type("What is it?")
    messages = sent_in(page, lambda: page.keyboard.press("Enter"))
    *pictures, text = messages[0]["content"]
    assert text == {"type": "text", "text": "What is it?"}
    assert [set(each) for each in pictures] == [{"type", "image_url"}] * 3
    assert [opened(each["image_url"]["url"]).size for each in pictures] == [(9, 9)] * 3
    assert answered(page).locator(".said").inner_text().count("@") == 3 * 4
    shown = page.locator(".message.user").get_by_role("img")
    assert [each.get_attribute("alt") for each in shown.all()] == ["a.png", "c.png", "d.png"]
    assert page.locator("#attached *").count() == 0
    messages = sent_in(page, lambda: say(page, "And now?"))
    assert len(messages[0]["content"]) == 4
    assert messages[2]["content"] == "And now?"


def test_a_picture_alone_is_a_message(page: "Page", serve_scripted: ServeScripted) -> None:
    open_page(page, serve_scripted(count, engine=SEES))
    choose(page, picture("a.png", (9, 9)))
    page.get_by_role("textbox", name="Message").press("Enter")  # while it is being read
    assert answered(page).locator(".said").inner_text() == "<user>@@@@\n<assistant>"
    page.get_by_role("button", name="Regenerate").click()
    page.reload()
    page.locator(".message.user").get_by_role("img", name="a.png").wait_for()


@pytest.mark.parametrize("case", some(ANEW, ANEW[:1]))
def test_what_is_too_large_or_too_rare_is_made_anew(
    page: "Page", serve_scripted: ServeScripted, case: tuple[Size, str, Size]
) -> None:
    size, kind, scaled = case
    open_page(page, serve_scripted(count, engine=SEES))
    data = encoded(Image.new("RGB", size, "red"), kind)
    choose(page, {"name": "big", "mimeType": f"image/{kind.lower()}", "buffer": data})
    attached(page, ["big"])
    messages = sent_in(page, lambda: say(page, "?"))
    answered(page)
    page.wait_for_function(  # the end of the chat stays in sight below the picture
        """() => document.querySelector(".message.user img").complete &&
            ((e) => e.scrollHeight - e.scrollTop - e.clientHeight < 2)(
            document.getElementById("scroller"))"""
    )
    url = messages[0]["content"][0]["image_url"]["url"]
    assert url.startswith("data:image/jpeg;base64,")
    assert opened(url).size == scaled
    red, green, blue = opened(url).getpixel((0, 0))  # type: ignore[misc]
    assert red > 240
    assert max(green, blue) < 15


@pytest.mark.thorough
def test_the_transparent_is_white(page: "Page", serve_scripted: ServeScripted) -> None:
    open_page(page, serve_scripted(count, engine=SEES))
    data = encoded(Image.new("RGBA", (2100, 10), (0, 0, 0, 0)), "PNG")
    choose(page, {"name": "x.png", "mimeType": "image/png", "buffer": data})
    attached(page, ["x.png"])
    messages = sent_in(page, lambda: say(page, "?"))
    assert min(opened(messages[0]["content"][0]["image_url"]["url"]).getpixel((0, 0))) > 250  # type: ignore[arg-type,type-var]
    answered(page)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "mime", "words"),
    [
        ("notes.txt", "text/plain", "notes.txt cannot be sent: scripted takes pictures."),
        ("a.wav", "audio/wav", "a.wav cannot be sent: scripted takes pictures."),
        ("a.svg", "image/svg+xml", "a.svg cannot be read as a picture."),
        ("cut.png", "image/png", "cut.png cannot be read as a picture."),
    ],
)
def test_what_is_no_picture_is_said(
    page: "Page", serve_scripted: ServeScripted, name: str, mime: str, words: str
) -> None:
    open_page(page, serve_scripted(["ok"], engine=SEES))
    page.get_by_role("button", name="Add pictures").wait_for()
    give(page, "drop", {"name": name, "mimeType": mime, "buffer": b"<svg/>"})
    page.get_by_role("status").get_by_text(words, exact=True).wait_for()
    assert page.locator("#attached *").count() == 0


@pytest.mark.thorough
def test_names_of_files_are_text(page: "Page", serve_scripted: ServeScripted) -> None:
    open_page(page, serve_scripted(["ok"], engine=SEES))
    page.get_by_role("button", name="Add pictures").wait_for()
    hostile = '<img src="x" onerror="alert(1)">'
    give(page, "drop", {"name": hostile, "mimeType": "text/html", "buffer": b""})
    page.get_by_text(f"{hostile} cannot be sent").wait_for()
    give(page, "drop", {**picture("", (9, 9)), "name": hostile})
    attached(page, [hostile])
    say(page, "Hi")
    answered(page)
    assert page.locator("[onerror]").count() == 0
    assert page.locator("#transcript img").get_attribute("alt") == hostile


def test_a_model_that_takes_none_is_offered_none(
    page: "Page", serve_scripted: ServeScripted
) -> None:
    """No button; a file that is dropped does not replace the page."""
    open_page(page, serve_scripted(["ok"]))
    assert not page.get_by_role("button", name="Add").is_visible()
    assert not give(page, "drop", picture("a.png", (9, 9)))
    page.get_by_text("a.png cannot be sent: scripted takes text only.", exact=True).wait_for()
    say(page, "Hi")
    assert answered(page).locator(".said").inner_text() == "ok"


def test_another_model_that_takes_none(page: "Page", serve_scripted: ServeScripted) -> None:
    """What was added for the first is not sent to the second."""
    server = serve_scripted(["ok"], engine=SEES)
    open_page(page, server)
    choose(page, picture("a.png", (9, 9)))
    attached(page, ["a.png"])

    def blind(route: Any) -> None:
        models = route.fetch().json()
        models["data"][0]["architecture"]["input_modalities"] = ["text"]
        route.fulfill(json=models)

    page.route("**/v1/models", blind)
    page.route("**/v1/stats", lambda route: route.abort())  # so that it asks again what there is
    page.locator("#status.stale").wait_for()
    page.unroute("**/v1/stats")
    page.get_by_role("button", name="Add pictures").wait_for(state="hidden")
    say(page, "Hi")
    page.get_by_text("scripted takes no pictures: remove a.png.", exact=True).wait_for()
    assert page.locator(".message").count() == 0
    page.get_by_role("button", name="Remove a.png").click()
    page.keyboard.press("Enter")
    assert answered(page).locator(".said").inner_text() == "ok"


def test_sounds(page: "Page", serve_scripted: ServeScripted) -> None:
    open_page(page, serve_scripted(count, engine={"media": ["image", "audio"]}))
    sound = {"name": "a.wav", "mimeType": "audio/x-wav", "buffer": wav(tone(0.5))}
    choose(page, sound, button="Add pictures and sounds")
    page.get_by_role("list", name="To be sent").get_by_text("a.wav").wait_for()
    messages = sent_in(page, lambda: say(page, "What do you hear?"))
    part = messages[0]["content"][0]
    data = base64.b64encode(sound["buffer"]).decode()
    assert part == {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    assert answered(page).locator(".said").inner_text().startswith("<user>@@@@")
    assert page.locator(".message.user").get_by_text("a.wav").is_visible()


def test_more_than_the_browser_keeps(page: "Page", serve_scripted: ServeScripted) -> None:
    """It is said, the chat goes on, and a reload keeps the texts and what is newest."""
    open_page(page, serve_scripted(["ok"], engine=SEES))
    for number, name in enumerate(["old.png", "new.png"]):
        choose(page, noise(name))
        attached(page, [name])
        say(page, name)
        answered(page, number)
    page.get_by_text("reloading the page loses 1 of the pictures and sounds").wait_for()
    page.reload()
    page.get_by_text("old.png: no longer kept, and not sent", exact=True).wait_for()
    assert page.locator(".message.user img").count() == 1
    page.locator("#running .card").first.wait_for()
    messages = sent_in(page, lambda: say(page, "And now?"))
    assert messages[0]["content"] == "old.png"
    assert [part["type"] for part in messages[2]["content"]] == ["image_url", "text"]


def test_the_server_says_what_is_wrong(page: "Page", serve_scripted: ServeScripted) -> None:
    open_page(page, serve_scripted(["ok"], engine=SEES, server={"max_media_items": 1}))
    choose(page, picture("a.png", (9, 9)), picture("b.png", (9, 9)))
    attached(page, ["a.png", "b.png"])
    say(page, "Hi")
    assert "the most are 1" in answered(page).locator(".error").inner_text()


@pytest.mark.thorough
def test_by_keyboard_and_by_name(page: "Page", serve_scripted: ServeScripted) -> None:
    """Every control has a name; a removed picture leaves the cursor in the message box."""
    page.on("filechooser", lambda _: None)  # the browser has to hear in time that one is expected
    open_page(page, serve_scripted(["ok"], engine=SEES))
    page.get_by_role("textbox", name="Message").focus()
    page.keyboard.press("Shift+Tab")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files([picture("a.png", (9, 9))])  # type: ignore[list-item]
    attached(page, ["a.png"])
    tree = page.locator("#composer").aria_snapshot()
    for line in (
        '- list "To be sent"',
        '- img "a.png"',
        '- button "Remove a.png"',
        "- status: a.p",
    ):
        assert line in tree, tree
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    page.get_by_role("status").get_by_text("a.png removed.").wait_for()
    assert page.evaluate("document.activeElement.id") == "prompt"


@pytest.mark.thorough
def test_phones(page: "Page", serve_scripted: ServeScripted) -> None:
    """A wide picture needs no sideways scrolling."""
    page.set_viewport_size({"width": 320, "height": 640})
    page.goto(serve_scripted(["ok"], engine=SEES).url)
    page.get_by_role("button", name="Add pictures").wait_for()
    choose(page, picture(f"{'long' * 30}.png", (1500, 40)))
    page.locator("#attached img").wait_for()
    fits = "(e => e.scrollWidth <= e.clientWidth)(document.querySelector('%s'))"
    assert page.evaluate(fits % "html")
    say(page, "Hi")
    answered(page)
    assert page.evaluate(fits % "#scroller")
