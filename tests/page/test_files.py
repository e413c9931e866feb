"""What the server sends for the page, and that all of it is shipped."""

import re
from pathlib import Path

import pytest

from tests.conftest import ServeScripted
from tests.outsider import Outsider
from tests.support import REPOSITORY

STATIC = REPOSITORY / "page" / "enginebay_page" / "static"
FILES = sorted(file for file in STATIC.rglob("*") if file.is_file())
SCRIPTS = [file for file in FILES if file.suffix == ".js"]
PAGES = [file for file in FILES if file.suffix == ".html"]
AS_BROWSER = {"Accept": "text/html,*/*;q=0.8"}
TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".html": "text/html; charset=utf-8",
}


def test_every_file_is_served_and_allows_nothing_but_this_server(
    serve_scripted: ServeScripted,
) -> None:
    server = serve_scripted(["ok"], server={"api_keys": ["secret"]})
    paths = ["/", "/docs", "/docs/assets/swagger-ui-bundle.js", "/docs/assets/swagger-ui.css"]
    for path in [*paths, *(f"/page/{file.relative_to(STATIC).as_posix()}" for file in FILES)]:
        answer = server.http.get(path, headers=AS_BROWSER)
        assert answer.status_code == 200, path
        assert answer.headers["content-type"] == TYPES[Path(path).suffix or ".html"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert "set-cookie" not in answer.headers
        known = {**AS_BROWSER, "If-None-Match": answer.headers["etag"]}
        unchanged = server.http.get(path, headers=known)
        assert unchanged.status_code == (304 if "/page/" in path or "assets" in path else 200)


@pytest.mark.parametrize(
    "path", ["/page/", "/page/nothing.js", "/page/../app.py", "/page/%2e%2e/x"]
)
def test_what_is_no_file_is_not_found(serve_scripted: ServeScripted, path: str) -> None:
    answer = serve_scripted(["ok"]).http.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_scripts_make_no_markup_of_text_and_fetch_nothing_else(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    forbidden = r"(?i)inner_?html|outer_?html|insertAdjacent|document\.write|\beval\b|new Function"
    assert not re.search(forbidden, text)
    code = re.sub(r"//.*", "", text.replace('"http://www.w3.org/2000/svg"', ""))
    assert not re.search(r"https?:", code.replace(r"https?:\/\/", ""))
    assert not re.search(r"\.cookie\b", code)
    for imported in re.findall(r'from "(.+?)"', text):
        assert (file.parent / imported).resolve() in SCRIPTS


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_pages_have_nothing_inline(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert re.findall(r"<script[^>]*>([^<]*)", text).count("") == text.count("<script")
    assert not re.search(r"<style|\sstyle=|\son\w+=|https?:", text)


def test_the_wheel_has_every_file(outsider: Outsider) -> None:
    shipped = outsider.packages / "enginebay_page" / "static"
    for file in FILES:
        assert (shipped / file.relative_to(STATIC)).read_bytes() == file.read_bytes()
