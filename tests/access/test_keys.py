"""Finding the key that a request sent."""

import base64

from hypothesis import given
from hypothesis import strategies as st

from enginebay.config.keys import Key
from enginebay.server.access.keys import (
    HASH_PREFIX,
    digest_of,
    find_key,
    hash_of,
    new_key,
    sent_keys,
)

KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1)
SPACES = st.text(" \t", max_size=3)
Headers = list[tuple[bytes, bytes]]


def key(secret: str, role: str = "user") -> Key:
    return Key(secret, digest_of(secret), "admin" if role == "admin" else "user")


def test_new_keys_are_random_and_recognisable() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    for secret in keys:
        assert secret.startswith("eb-")
        assert len(base64.urlsafe_b64decode(secret.removeprefix("eb-") + "=")) == 32
        assert secret not in hash_of(secret)
    assert hash_of("abc") == HASH_PREFIX + digest_of("abc").hex()
    # FIPS 180-2, appendix B.1
    assert hash_of("abc").endswith(
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


@given(KEYS, SPACES, SPACES, st.sampled_from(["Bearer", "bearer", "BEARER"]))
def test_bearer(secret: str, before: str, behind: str, scheme: str) -> None:
    value = f"{before}{scheme} {behind}{secret}{behind}".encode()
    assert sent_keys([(b"authorization", value)]) == [secret.encode()]


@given(st.lists(st.tuples(st.sampled_from([b"x-api-key", b"x-admin-key"]), KEYS.map(str.encode))))
def test_other_headers(headers: Headers) -> None:
    assert sent_keys(headers) == [value for _, value in headers]


@given(
    st.lists(
        st.tuples(st.binary(), st.binary()) | st.tuples(st.just(b"authorization"), st.binary())
    )
)
def test_any_headers(headers: Headers) -> None:
    """Whatever is sent, keys come out of it without blanks around them, and none is made up."""
    for sent in sent_keys(headers):
        assert sent
        assert sent == sent.strip()
        assert any(sent in value for _, value in headers)
    assert find_key(sent_keys(headers), [key("secret")]) is None or any(
        b"secret" in value for _, value in headers
    )


def test_what_is_no_key() -> None:
    for value in (b"", b"Bearer", b"Bearer ", b"Basic abc", b"Bearerabc", b"abc"):
        assert sent_keys([(b"authorization", value)]) == []
    assert sent_keys([(b"x-api-key", b" "), (b"x-other-key", b"abc")]) == []


@given(st.lists(KEYS, unique=True, min_size=1), st.data())
def test_one_of_many(secrets: list[str], data: st.DataObject) -> None:
    keys = [key(secret) for secret in secrets]
    wanted = data.draw(st.sampled_from(secrets))
    found = find_key([b"wrong key", wanted.encode()], keys)
    assert found is not None
    assert found.name == wanted
    others = [k for k in keys if k.name != wanted]
    assert find_key([wanted.encode()], others) is None


def test_the_admins_key_counts_when_both_are_sent() -> None:
    keys = [key("u"), key("a", "admin")]
    for order in (keys, keys[::-1]):
        for sent in ([b"u", b"a"], [b"a", b"u"]):
            found = find_key(sent, order)
            assert found is not None
            assert found.role == "admin"


def test_bytes_that_are_no_text() -> None:
    assert find_key([b"\xff\xfe", b"\x00"], [key("one")]) is None
    secret = "schlüssel"
    assert find_key([secret.encode()], [key(secret)])
