"""Items in the request itself: MEDIA-15, MM-3."""

import base64
from contextlib import suppress
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.contract.errors import InvalidRequestError
from enginebay.media import data_url
from enginebay.media.data_url import data_of, is_data
from enginebay.media.policy import ByteLimit


def read(url: str, most: int = 1000) -> bytes:
    assert is_data(url)
    return data_of(url, ByteLimit(most, "the picture has"))


@given(st.binary(max_size=1000), st.text("abc/+.-; =", max_size=50))
def test_every_spelling_of_the_same_bytes(data: bytes, type: str) -> None:
    text = base64.b64encode(data).decode()
    for url in (f"data:{type};base64,{text}", f"DATA:{type};BASE64,{text}", text):
        assert read(url) == data
    escaped = text.replace("=", "%3D").replace("+", "%2B").replace("/", "%2f")
    assert read(f"data:;base64,{escaped}") == data
    assert read(f"data:{type.replace(';', '')},{quote_from_bytes(data)}") == data


@given(st.text(max_size=300) | st.text("data:;base64,AQ=/+%\n", max_size=60))
def test_whatever_is_sent_is_bytes_or_a_400(text: str) -> None:
    for url in (f"data:{text}", f"data:;base64,{text}", f"data:,{text}", text):
        if is_data(url):
            with suppress(InvalidRequestError):
                assert len(data_of(url, ByteLimit(100, "it has"))) <= 100


BAD = {
    "no comma": "data:image/png;base64",
    "nothing": "data:",
    "head without end": "data:" + "x" * 300 + ",",
    "other characters": "data:image/png;base64,####",
    "cut": "data:image/png;base64,AAA",
    "padding inside": "data:image/png;base64,AA==AAAA",
    "padding only": "data:image/png;base64,====",
    "alphabet of URLs": "data:image/png;base64,_-_-",
    "no ASCII": "data:image/png;base64,ÄÖÜß",
    "half of a character": "data:image/png;base64,\ud800AAA",
    "half of a character, not base64": "data:,\ud800",
}


@pytest.mark.parametrize("name", BAD)
def test_attack_data_url(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="not valid"):
        read(BAD[name])


@pytest.mark.parametrize("space", ["\n", "\r\n", " ", "\t", "%0A", "%0d%0a", "%20"])
def test_base64_with_line_breaks(space: str) -> None:
    text = base64.encodebytes(bytes(100)).decode().replace("\n", space)
    for url in (f"data:image/png;base64,{text}", text):
        with pytest.raises(InvalidRequestError, match=r"line break or space at its character 77\b"):
            read(url)


LARGE = {
    "base64": "data:image/png;base64," + "A" * 4000,
    "base64 by one": "data:image/png;base64," + base64.b64encode(bytes(1001)).decode(),
    "only base64": "A" * 4000,
    "escaped": "data:," + "%00" * 1001,
    "plain": "data:," + "x" * 1001,
}


@pytest.mark.parametrize("name", LARGE)
def test_attack_data_too_large(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="the picture has more than 1000 bytes"):
        read(LARGE[name])


@pytest.mark.parametrize("head", ["data:,", "data:image/png;base64,"])
def test_attack_megabytes_of_escapes(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a step of Python's, for which all others would wait."""
    monkeypatch.setattr(data_url, "unquote_to_bytes", lambda text: pytest.fail("it is decoded"))
    with pytest.raises(InvalidRequestError, match=r"written as %XX; send base64|not valid base64"):
        read(head + "%41" * 100_001, most=1_000_000)


def test_as_large_as_may_be() -> None:
    assert len(read("data:;base64," + base64.b64encode(bytes(1000)).decode())) == 1000


def test_what_is_data() -> None:
    for url in ("data:,x", "Data:,x", "iVBORw0KGgo=", "/9j/4AAQ", "x/y.png", ""):
        assert is_data(url)
    for url in ("http://a/", "file:///a", "a:b", "localhost:80/x", "javascript:data:"):
        assert not is_data(url)
