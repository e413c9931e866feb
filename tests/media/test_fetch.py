"""What is fetched from where: MEDIA-22 to MEDIA-30, MM-5, MM-8, LF-11, LF-31."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Iterable
from contextlib import closing
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpcore2
import pytest

from enginebay.contract.errors import InvalidRequestError
from enginebay.media.fetch import Fetcher
from enginebay.media.network import CheckedBackend, Resolver
from enginebay.media.policy import ByteLimit, MediaPolicy
from tests.media.origin import LOOPBACK, Names, ok, origin, policy, redirect, unknown
from tests.media.samples import PNG

NO_ADDRESS = "no address that this server may ask"


async def get(
    url: str,
    allowed: MediaPolicy | None = None,
    *,
    resolve: Resolver | None = None,
    tls: ssl.SSLContext | None = None,
) -> bytes:
    with closing(Fetcher(allowed or policy(), resolve=resolve or Names(), tls=tls)) as fetcher:
        return await fetcher.get(url, ByteLimit(1 << 20, "the picture has"))


async def refusal(url: str, allowed: MediaPolicy | None = None, **more: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        await get(url, allowed, **more)
    assert caught.value.status == 400
    return caught.value.message


async def test_the_server_gets_name_path_and_query() -> None:
    names = Names()
    async with origin(**{"a b.png": b"", "a%20b.png": ok(PNG)}) as served:
        assert await get(served.url("a%20b.png?x=1&y=%2F#part"), resolve=names) == PNG
        assert served.asked == [("/a%20b.png?x=1&y=%2F", f"pictures.example:{served.port}")]
    assert names.asked == ["pictures.example"]


async def test_names_and_paths_that_are_not_ascii() -> None:
    async with origin(**{"k%C3%A4se.png": ok(PNG)}) as served:
        names = Names()
        assert await get(served.url("käse.png", "KÄSE.example."), resolve=names) == PNG
        assert names.asked == ["xn--kse-qla.example"]


async def test_chunked_bodies_are_read() -> None:
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(PNG), PNG)
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    async with origin(chunked=answer) as served:
        assert await get(served.url("chunked")) == PNG


class Nobody(httpcore2.AsyncNetworkBackend):
    """Notes which addresses are connected to, where nobody is."""

    def __init__(self, there: Iterable[str] = ()) -> None:
        self.asked: list[str] = []
        self._there = set(there)

    async def connect_tcp(self, host: str, *_: Any, **__: Any) -> httpcore2.AsyncNetworkStream:
        self.asked.append(host)
        if host in self._there:
            return httpcore2.AsyncMockStream([])
        raise httpcore2.ConnectError("nobody there")


async def connect(names: Names, inner: Nobody) -> None:
    backend = CheckedBackend(MediaPolicy().allows_address, names, inner)
    await backend.connect_tcp("rebind.example", 443, timeout=1)


async def test_attack_rebinding_later_answers_are_never_asked_for() -> None:
    # MEDIA-23: a public address first, this machine from then on
    names = Names(rebind_example=[["93.184.216.34"], ["127.0.0.1"]])
    nobody = Nobody()
    with pytest.raises(httpcore2.ConnectError):
        await connect(names, nobody)
    assert (names.asked, nobody.asked) == (["rebind.example"], ["93.184.216.34"])


@pytest.mark.parametrize(
    "answers",
    [["127.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["10.0.0.1", "8.8.8.8"], ["8.8.8.8", "::1"]],
    ids=["inside only", "public, then inside", "inside, then public", "inside by IPv6"],
)
async def test_attack_rebinding_one_bad_answer_refuses_the_name(answers: list[str]) -> None:
    nobody = Nobody()
    with pytest.raises(InvalidRequestError, match=NO_ADDRESS):
        await connect(Names(rebind_example=[answers]), nobody)
    assert nobody.asked == []


async def test_attack_rebinding_between_a_redirect_and_its_target() -> None:
    names = Names(pictures_example=[["127.0.0.1"], ["10.0.0.1"]])
    async with origin(a=redirect("/b"), b=ok(PNG)) as served:
        assert NO_ADDRESS in await refusal(served.url("a"), resolve=names)
        assert [path for path, _ in served.asked] == ["/a"]
    assert names.asked == ["pictures.example"] * 2


async def test_addresses_are_tried_in_order() -> None:
    nobody = Nobody(["9.9.9.9"])
    await connect(Names(rebind_example=[["8.8.8.8", "9.9.9.9", "1.1.1.1"]]), nobody)
    assert nobody.asked == ["8.8.8.8", "9.9.9.9"]


INSIDE = {
    "decimal": "2130706433",
    "hexadecimal": "0x7f000001",
    "hexadecimal parts": "0x7f.1",
    "octal": "0177.0.0.1",
    "short": "127.1",
    "name": "localhost",
    "name with a dot": "localhost.",
    "capitals": "LOCALHOST",
    "circled letter": "ⓛocalhost",
    "full-width letters": "ｌｏｃａｌｈｏｓｔ",
    "full-width digits": "１２７.0.0.1",
    "ideographic full stop": "127。0。0。1",
    "number": "127.0.0.1",
    "zero": "0",
    "v6": "[::1]",
    "v6, long": "[0:0:0:0:0:0:0:1]",
    "v4-mapped": "[::ffff:127.0.0.1]",
    "v4-mapped, hexadecimal": "[::ffff:7f00:1]",
    "v4-compatible": "[::127.0.0.1]",
    "scope": "[::1%25lo]",
    "soft hyphen": "local\u00adhost",
}


@pytest.mark.parametrize("spelling", INSIDE)
async def test_attack_this_machine_spelled(spelling: str) -> None:
    # MEDIA-24; with the resolver of the system
    async with origin(secret=ok(b"secret")) as served:
        with closing(Fetcher(MediaPolicy())) as fetcher:
            url = served.url("secret", INSIDE[spelling])
            with pytest.raises(InvalidRequestError):
                await fetcher.get(url, ByteLimit(1000, "it has"))
        assert served.asked == []


async def test_attack_a_number_at_a_public_port_is_this_machine() -> None:
    assert NO_ADDRESS in await refusal("http://127.0.0.1/", MediaPolicy())
    assert NO_ADDRESS in await refusal("https://[::1]/", MediaPolicy())


BAD_URLS = {
    "ftp": "ftp://a.example/x",
    "gopher": "gopher://a.example/_GET",
    "javascript": "javascript:1",
    "user name": "http://user@a.example/",
    "user name and password": "http://user:pw@a.example/",
    "empty user name": "http://@a.example/",
    "no host": "http:///x",
    "no host, relative": "http:x",
    "port beyond": "http://a.example:99999/",
    "port no number": "http://a.example:x/",
    "negative port": "http://a.example:-1/",
    "space in host": "http://a b/",
    "backslash": "http://a.example\\@b.example/",
    "line break": "http://a.example/\r\nHost: b.example",
    "line break in the host": "http://a.example\r\n.b/",
    "tab": "http://a.exa\tmple/",
    "null": "http://a.example/\0",
    "leading space": " http://a.example/",
    "too long": "http://a.example/" + "x" * 9000,
    "host too long": "http://" + "a." * 200 + "example/",
    "label too long": f"http://{'a' * 70}.example/",
    "open bracket": "http://[::1/",
    "empty label": "https://a..b/",
    "half of a character": "http://a.example/\ud800",
    "folded slash": "http://a.example／x/",
    "at sign folded": "http://a.example＠b.example/",
}


@pytest.mark.parametrize("wrong", BAD_URLS)
async def test_attack_url(wrong: str) -> None:
    names = Names()
    assert "URL is not valid" in await refusal(BAD_URLS[wrong], resolve=names)
    assert names.asked == []


async def test_redirects_are_followed() -> None:
    answers = {f"to{status}": redirect("end", status) for status in (301, 302, 303, 307, 308)}
    async with origin(end=ok(PNG), **answers) as served:
        for name in answers:
            assert await get(served.url(name)) == PNG


REDIRECTS = {
    "metadata": "http://169.254.169.254/latest/meta-data/",
    "private address": "http://10.0.0.1/",
    "this machine, another port": "http://[::1]:{port}/secret",
    "name that leads inside": "http://inside.example:{port}/secret",
    "file": "file:///etc/passwd",
    "data": "data:image/png;base64,AAAA",
    "ftp": "ftp://a.example/",
    "port of ssh on a public host": "http://public.example:22/",
    "user name": "http://user:pw@pictures.example:{port}/secret",
    "no URL": "http://[",
    "scheme-relative": "//inside.example:{port}/secret",
}


@pytest.mark.parametrize("target", REDIRECTS)
async def test_attack_redirect_to(target: str) -> None:
    # MEDIA-25
    names = Names(inside_example=[["10.0.0.5"]], public_example=[["8.8.8.8"]])
    async with origin(secret=ok(b"secret")) as served:
        served.answers["/a"] = redirect(REDIRECTS[target].format(port=served.port))
        await refusal(served.url("a"), resolve=names)
        assert [path for path, _ in served.asked] == ["/a"]


async def test_attack_redirect_chain() -> None:
    chain = {f"to{number}": redirect(f"to{number + 1}") for number in range(4)}
    async with origin(**chain, to4=ok(PNG)) as served:
        assert "redirects more than 3 times" in await refusal(served.url("to0"))
        assert len(served.asked) == 4
        assert await get(served.url("to1")) == PNG


@pytest.mark.parametrize("location", ["a", ""], ids=["itself", "nowhere"])
async def test_attack_redirect_circle(location: str) -> None:
    async with origin(a=redirect(location)) as served:
        assert "redirects more than 3 times" in await refusal(served.url("a"))
        assert len(served.asked) == 4


async def test_attack_redirect_to_a_host_that_is_not_listed() -> None:
    allowed = policy(hosts=("good.example",))
    async with origin() as served:
        served.answers |= {"/a": redirect(served.url("b", "bad.example")), "/b": ok(PNG)}
        assert "server.media_hosts" in await refusal(served.url("a", "good.example"), allowed)
        assert len(served.asked) == 1


async def test_hosts_that_are_listed() -> None:
    # MEDIA-26
    allowed = policy(hosts=("good.example", ".cdn.example"))
    async with origin(a=ok(PNG)) as served:
        for host in ("good.example", "GOOD.example.", "a.cdn.example", "a.b.cdn.example"):
            assert await get(served.url("a", host), allowed) == PNG


@pytest.mark.parametrize(
    "host",
    [
        "bad.example",
        "good.example.bad.example",
        "cdn.example",
        "a.cdn.example.evil.org",
        "notcdn.example",
        "xgood.example",
        "127.0.0.1",
    ],
)
async def test_attack_host_that_is_not_listed(host: str) -> None:
    names = Names()
    allowed = policy(hosts=("good.example", ".cdn.example"))
    async with origin(a=ok(PNG)) as served:
        said = await refusal(served.url("a", host), allowed, resolve=names)
        assert "server.media_hosts" in said
        assert (served.asked, names.asked) == ([], [])


async def test_ports_of_public_hosts() -> None:
    names = Names(public_example=[["93.184.216.34"]])
    for port in (22, 25, 6379, 8080):
        said = await refusal(f"http://public.example:{port}/", MediaPolicy(), resolve=names)
        assert NO_ADDRESS in said


async def test_private_networks_need_to_be_listed() -> None:
    names = Names(nas_example=[["127.0.0.1"], ["::ffff:127.0.0.1"], ["127.0.0.2"]])
    async with origin(a=ok(PNG)) as served:
        for _ in range(2):
            assert await get(served.url("a", "nas.example"), resolve=names) == PNG
        assert NO_ADDRESS in await refusal(served.url("a", "nas.example"), resolve=names)
        others = policy(networks=(ip_network("10.0.0.0/8"), ip_network("::1/128")))
        assert NO_ADDRESS in await refusal(served.url("a"), others)


async def test_unknown_names_sound_like_private_ones() -> None:
    inside = Names(inside_example=[["10.0.0.1"]])
    said = await refusal("http://inside.example/", MediaPolicy(), resolve=inside)
    assert said == await refusal("http://inside.example/", MediaPolicy(), resolve=unknown)


async def test_a_resolver_that_says_nonsense() -> None:
    for answer in ([], ["not an address"], ["127.0.0.1", "x"]):
        assert NO_ADDRESS in await refusal("http://a.example/", resolve=Names(a_example=[answer]))


async def test_switched_off() -> None:
    # MM-8, MEDIA-28
    async with origin(a=ok(PNG)) as served:
        said = await refusal(served.url("a"), policy(fetch=False))
        assert "server.fetch_media" in said
        assert served.asked == []


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
async def test_attack_proxy_of_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # MEDIA-28
    async with origin(a=ok(PNG)) as served, origin(a=ok(b"of the proxy")) as proxy:
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert await get(served.url("a")) == PNG
        assert proxy.asked == []


async def test_nothing_of_ours_is_sent() -> None:
    async with origin(a=ok(PNG, "Set-Cookie: a=b"), b=redirect("a")) as served:
        await get(served.url("b"))
        names = {line.partition(":")[0].lower() for line in served.lines if ":" in line}
        assert names == {"host", "accept", "accept-encoding", "connection", "user-agent"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for pictures.example alone, signed by itself, and its key beside it."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("tls")
    names = ["-subj", "/CN=pictures.example", "-addext", "subjectAltName=DNS:pictures.example"]
    made = ["-keyout", str(folder / "key"), "-out", str(folder / "certificate"), "-days", "2"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made, *names]
    subprocess.run(command, check=True, capture_output=True)
    return folder


async def test_tls_is_for_the_name_although_the_connection_goes_to_a_number(
    certificate: Path,
) -> None:
    # MEDIA-30
    seen: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "certificate", certificate / "key")
    context.sni_callback = lambda _socket, name, _context: seen.append(name)
    trusting = ssl.create_default_context(cafile=str(certificate / "certificate"))
    async with origin(tls=context, a=ok(PNG)) as served:
        assert await get(served.url("a", scheme="https"), tls=trusting) == PNG
        assert seen == ["pictures.example"]
        other = served.url("a", "other.example", "https")
        assert "connection failed" in await refusal(other, tls=trusting)
        number = served.url("a", "127.0.0.1", "https")
        assert "connection failed" in await refusal(number, tls=trusting)
        assert "connection failed" in await refusal(served.url("a", scheme="https"))
        assert len(served.asked) == 1


async def test_fetches_wait_for_their_turn() -> None:
    running = most = 0

    async def count(visit: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await visit.is_over(0.01)
        running -= 1
        visit.writer.write(ok(PNG))

    async with origin(a=count) as served:
        with closing(Fetcher(policy(fetches=2), resolve=Names())) as fetcher:
            limits = [ByteLimit(1000, "it has") for _ in range(6)]
            got = await asyncio.gather(*(fetcher.get(served.url("a"), each) for each in limits))
    assert got == [PNG] * 6
    assert most == 2
    assert LOOPBACK in policy().networks
