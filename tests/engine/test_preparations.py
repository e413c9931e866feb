"""SEC-9: items that are decoded beside the steps of an engine."""

import threading

import pytest

from enginebay import InvalidRequestError, Media, Preparations


def item(name: str) -> Media:
    return Media(kind="image", data=name.encode(), type="image/png")


def until_ready(preparations: Preparations[str], media: Media) -> None:
    while not preparations.ready(media):
        preparations.wait()


def test_an_item_is_prepared_on_another_thread_and_held() -> None:
    go_on, made = threading.Event(), list[int]()

    def make(media: Media) -> str:
        assert go_on.wait(60)
        made.append(threading.get_ident())
        return media.data.decode()

    preparations = Preparations(make, lambda media: None)
    assert not preparations.ready(item("a"))
    preparations.wait()
    assert not preparations.ready(item("a"))
    go_on.set()
    until_ready(preparations, item("a"))
    assert [preparations.get(item("a")) for _ in range(3)] == ["a"] * 3
    assert len(made) == 1
    assert made[0] != threading.get_ident()
    preparations.forget(item("a"))
    assert preparations.get(item("a")) == "a"
    assert len(made) == 2


def test_what_is_kept_is_not_prepared() -> None:
    def make(media: Media) -> str:
        raise AssertionError

    kept = {item("a").key: "kept"}
    preparations = Preparations(make, lambda media: kept.pop(media.key, None))
    assert preparations.ready(item("a"))
    assert not kept
    assert preparations.get(item("a")) == "kept"


def test_an_error_belongs_to_the_item() -> None:
    def make(media: Media) -> str:
        raise InvalidRequestError("it is damaged")

    preparations = Preparations(make, lambda media: None)
    until_ready(preparations, item("a"))
    with pytest.raises(InvalidRequestError, match="damaged"):
        preparations.get(item("a"))


def test_items_of_requests_that_have_gone_are_forgotten() -> None:
    made: list[bytes] = []
    preparations = Preparations(lambda media: made.append(media.data), lambda media: None)
    until_ready(preparations, item("gone"))
    until_ready(preparations, item("wanted"))
    for _ in range(3000):
        preparations.ready(item("wanted"))
    until_ready(preparations, item("other"))
    for _ in range(2000):
        preparations.ready(item("wanted"))
    until_ready(preparations, item("new"))
    assert made == [b"gone", b"wanted", b"other", b"new"]
    until_ready(preparations, item("wanted"))
    until_ready(preparations, item("gone"))
    assert made == [b"gone", b"wanted", b"other", b"new", b"gone"]
