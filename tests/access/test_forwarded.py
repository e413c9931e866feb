"""What is believed of what proxies say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.server.access.forwarded import Said, TrustedProxies

TRUSTED = TrustedProxies(["127.0.0.1/32", "10.0.0.0/8", "fd00::/8", "unix"])


def read(peer: str = "127.0.0.1", **headers: str | list[str]) -> Said:
    sent = []
    for name, values in headers.items():
        for value in [values] if isinstance(values, str) else values:
            sent.append((name.replace("_", "-").encode(), value.encode("latin-1")))
    return TRUSTED.read(peer, sent)


@pytest.mark.parametrize(
    ("addresses", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("8.8.8.8, 192.0.2.7", "192.0.2.7"),
        ("8.8.8.8, 192.0.2.7, 10.1.2.3", "192.0.2.7"),
        (["8.8.8.8", "192.0.2.7", "10.1.2.3"], "192.0.2.7"),
        ("10.9.9.9, 10.1.2.3", "10.9.9.9"),
        ("8.8.8.8, unknown, 10.1.2.3", "10.1.2.3"),
        ("8.8.8.8, ,", None),
        ("localhost", None),
        ("192.0.2.7:4711", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%a [b] c", "fe80::1"),
        ("::ffff:10.1.1.1, ::ffff:127.0.0.1", "10.1.1.1"),
        ("2001:db8::1, fd00::7", "2001:db8::1"),
        ("192.0.2.7\n8.8.8.8", None),
    ],
)
def test_the_client_is_the_last_that_is_no_proxy(
    addresses: str | list[str], client: str | None
) -> None:
    """What stands before it, anybody may have written."""
    assert read(x_forwarded_for=addresses).client == client


@pytest.mark.parametrize("peer", ["192.0.2.1", "127.0.0.2", "::1", "", "nonsense"])
def test_others_are_not_believed(peer: str) -> None:
    everything = {
        "x_forwarded_for": "192.0.2.7",
        "x_forwarded_proto": "https",
        "x_forwarded_host": "llm.example",
        "x_forwarded_prefix": "/llm",
        "forwarded": "for=192.0.2.7",
    }
    assert read(peer, **everything) == Said()
    said = Said("192.0.2.7", "https", "llm.example", "/llm")
    for trusted in ("127.0.0.1", "unix", "::ffff:127.0.0.1"):
        assert read(trusted, **everything) == said


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("for=192.0.2.7;proto=https;host=llm.example", ("192.0.2.7", "https", "llm.example")),
        (
            'For="[2001:db8::1]:80" ; HOST="llm.example:8443"',
            ("2001:db8::1", None, "llm.example:8443"),
        ),
        ("for=8.8.8.8, for=192.0.2.7;proto=http", ("192.0.2.7", "http", None)),
        ("for=8.8.8.8;host=evil.example;proto=https, for=192.0.2.7", ("192.0.2.7", None, None)),
        ('for=8.8.8.8;host=", for=192.0.2.7', (None, None, None)),
        ("for=8.8.8.8,,for=192.0.2.7", (None, None, None)),
        ("for=_hidden, for=10.0.0.1", ("10.0.0.1", None, None)),
        ('for="192.0.2.7', (None, None, None)),
        ("for", (None, None, None)),
    ],
)
def test_forwarded(header: str, said: tuple[str | None, ...]) -> None:
    assert read(forwarded=header)[:3] == said


def test_forwarded_does_not_count_beside_the_others() -> None:
    """Most proxies pass on what they do not know, as a client made it up."""
    said = read(x_forwarded_for="192.0.2.7", forwarded="for=8.8.8.8;host=evil.example;proto=https")
    assert said == Said("192.0.2.7")


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x_forwarded_proto", "javascript"),
        ("x_forwarded_host", "evil.example/path"),
        ("x_forwarded_host", "a b"),
        ("x_forwarded_host", "user@evil.example"),
        ("x_forwarded_prefix", "//evil.example"),
        ("x_forwarded_prefix", "https://evil.example"),
        ("x_forwarded_prefix", "/a/../b"),
        ("x_forwarded_prefix", "/\r\nSet-Cookie: a"),
    ],
)
def test_what_makes_no_sense_is_left_out(header: str, value: str) -> None:
    assert read(**{header: value}) == Said()


@given(st.text(st.characters(max_codepoint=255), max_size=80))
def test_any_header(text: str) -> None:
    """Nothing raises, and what is believed has the form that is promised."""
    names = ("for", "proto", "host", "prefix")
    for headers in ({"forwarded": text}, {f"x_forwarded_{name}": text for name in names}):
        said = read(**headers)
        assert said.scheme in (None, "http", "https")
        for each in (said.client, said.host, said.prefix):
            assert each is None or (each.isprintable() and " " not in each and "//" not in each)
