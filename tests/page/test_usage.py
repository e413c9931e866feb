"""The usage of keys on the page (KEY-1)."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tests.access.test_access import Start
from tests.access.test_access import start as start
from tests.conftest import ServeScripted
from tests.page.support import answers

if TYPE_CHECKING:
    from playwright.sync_api import Page

TODAY = datetime.now(UTC).date()
COUNTS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")


def entry(key: str | None, model: str, days_ago: int, *counts: int) -> dict[str, Any]:
    day = str(TODAY - timedelta(days_ago))
    return {"key": key, "model": model, "day": day, **dict(zip(COUNTS, counts, strict=True))}


DATA = [
    entry("anna", "small", 1, 2, 1000, 250, 40),
    entry("anna", "small", 0, 1, 1500, 0, 7),
    entry(None, "big", 0, 30, 2_000_000, 0, 1234),
]
LIMITS = {
    "requests_per_minute": None,
    "tokens_per_day": {"limit": 50_000, "used": 48_000, "remaining": 2000, "reset_s": 7200.0},
}


def test_usage_is_a_table_and_a_plot(page: "Page", serve_scripted: ServeScripted) -> None:
    asked = answers(page, "v1/usage", {"object": "list", "data": DATA, "limits": LIMITS})
    page.goto(serve_scripted(["ok"]).url)
    page.get_by_role("link", name="Usage").click()
    page.get_by_text(
        "33 requests · 2M prompt tokens (0 % cached) · 1.3K completion tokens"
    ).wait_for()
    table = page.locator("#usage table")
    assert [row.split("\t") for row in table.locator("tbody tr").all_inner_texts()] == [
        [str(TODAY), "big", "no key", "30", "2,000,000", "0", "1,234"],
        [str(TODAY), "small", "anna", "1", "1,500", "0", "7"],
        [str(TODAY - timedelta(1)), "small", "anna", "2", "1,000", "250", "40"],
    ]
    assert table.locator("tfoot td").all_inner_texts() == ["33", "2,002,500", "250", "1,281"]
    limits = page.get_by_role("list", name="Limits").locator("li")
    assert limits.all_inner_texts() == ["tokens per day: 2,000 of 50,000 left, all again in 2 h"]
    days = page.locator(".day-bars g")
    assert days.count() == 30
    assert "1,234 completion" not in (days.nth(28).locator("title").text_content() or "")
    assert "40 completion, 1,000 prompt (250 cached)" in (
        days.nth(28).locator("title").text_content() or ""
    )
    page.get_by_role("combobox", name="Last").select_option("7")
    page.locator(".day-bars g").nth(7).wait_for(state="detached")
    assert asked == ["days=30", "days=7"]


def test_admins_choose_a_key(page: "Page", start: Start) -> None:
    asked = answers(page, "v1/usage", {"object": "list", "data": DATA, "limits": {}})
    page.goto(f"{start({'anna': {}}).server.url}/#usage")
    dialog = page.get_by_role("dialog")

    def use(key: str) -> None:
        dialog.get_by_label("Key", exact=True).fill(key)
        dialog.get_by_role("button", name="Use key").click()

    use("key-of-anna")
    page.locator("#running .card").first.wait_for(state="attached")
    assert not page.get_by_role("combobox", name="Key").is_visible()
    page.get_by_role("button", name="Key").click()
    use("key-of-root")
    chosen = page.get_by_role("combobox", name="Key")
    chosen.wait_for()
    chosen.locator("option", has_text="anna").wait_for(state="attached")
    assert chosen.locator("option").all_inner_texts() == ["all keys", "no key", "anna"]
    for name in ("anna", "no key"):
        with page.expect_response("**/v1/usage?*"):
            chosen.select_option(label=name)
    assert asked[-3:] == ["days=30", "days=30&key=anna", "days=30&key="]


def test_errors_and_servers_that_do_not_count(page: "Page", serve_scripted: ServeScripted) -> None:
    answers(page, "v1/usage", "the file of usage is locked", status=503)
    page.goto(f"{serve_scripted(['ok']).url}/#usage")
    page.locator("#usage .error").get_by_text("the file of usage is locked").wait_for()
    answers(page, "v1/usage", "there is no such route", status=404)
    page.get_by_role("button", name="Refresh").click()
    page.get_by_role("link", name="Usage").wait_for(state="hidden")


def test_an_answer_that_is_no_json(page: "Page", serve_scripted: ServeScripted) -> None:
    page.route("**/v1/usage?*", lambda route: route.fulfill(body="<html>Log in</html>"))
    page.goto(f"{serve_scripted(['ok']).url}/#usage")
    page.locator("#usage .error").get_by_text("The answer is not JSON").wait_for()


def test_long_names_leave_the_page_as_wide_as_it_is(
    page: "Page", serve_scripted: ServeScripted
) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    data = [entry("key" * 80, "model" * 80, 0, *[10**15] * 4), *DATA]
    answers(page, "v1/usage", {"object": "list", "data": data, "limits": {}})
    page.goto(f"{serve_scripted(['ok']).url}/#usage")
    page.locator(".day-bars svg").wait_for()
    page.get_by_role("combobox", name="Key").wait_for()  # who is an admin is another answer
    for shown in page.locator("#usage :is(select, button, svg, .table)").all():
        box = shown.bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
