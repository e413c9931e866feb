"""nginx and Caddy, started with what docs/guides/proxy.md has for them."""

import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
GUIDE = (REPOSITORY / "docs" / "guides" / "proxy.md").read_text(encoding="utf-8")
CERTIFICATE = REPOSITORY / "tests" / "certificates" / "first.pem"
"""Theirs, signed by itself, for 127.0.0.1."""


def snippet(language: str, **replaced: str) -> str:
    """The first snippet of this language, with other names, ports and files in it."""
    [text, *_] = re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    return with_others(text, replaced)


def with_others(text: str, replaced: dict[str, str]) -> str:
    for old, new in replaced.items():
        assert old in text, old
        text = text.replace(old, new)
    return str(text)


def nginx(folder: Path, port: int, upstream: str, way: str) -> list[str]:
    slash = {"stripped": "/", "stripped by unix": ":/"}.get(way, "")
    text = snippet(
        "nginx",
        **{
            "/llm/": "/" if way == "alone" else "/llm/",
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "/etc/ssl/llm.example.pem": str(CERTIFICATE),
            "/etc/ssl/llm.example.key": str(CERTIFICATE.with_suffix(".key")),
            "http://127.0.0.1:5000;": f"http://{upstream}{slash};",
        },
    )
    kept = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
    paths = "".join(f"{each}_temp_path {folder / each};" for each in kept)
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder / 'pid'}; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {paths}\n{text} }}\n"
    )
    return ["nginx", "-e", "stderr", "-c", str(folder / "nginx.conf")]


def caddy(folder: Path, port: int, upstream: str, way: str) -> list[str]:
    here = f"https://127.0.0.1:{port}"
    pair = f"tls {CERTIFICATE} {CERTIFICATE.with_suffix('.key')}"
    text = snippet(
        "caddy",
        **{
            "llm.example {": f"{here} {{\n{pair}",
            "127.0.0.1:5000": upstream.replace("unix:", "unix/"),
            "handle ": "handle_path " if "stripped" in way else "handle ",
            "/llm/* ": "" if way == "alone" else "/llm/* ",
            "redir /llm /llm/": "" if way == "alone" else "redir /llm /llm/",
        },
    )
    own = f"{{\nadmin off\nauto_https off\nstorage file_system {folder}\n}}\n"
    (folder / "Caddyfile").write_text(own + text)
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


PROXIES = {"nginx": nginx, "caddy": caddy}


@contextmanager
def running(command: list[str], port: int, errors: Path) -> Iterator[None]:
    with errors.open("w") as stderr, subprocess.Popen(command, stderr=stderr) as process:
        try:
            while process.poll() is None:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=60).close()
                    break
                except ConnectionError:
                    continue
            assert process.returncode is None, errors.read_text()
            yield
        finally:
            process.terminate()


@contextmanager
def proxy(name: str, folder: Path, upstream: str, way: str) -> Iterator[str]:
    """Run it before a server; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with running(PROXIES[name](folder, port, upstream, way), port, folder / "errors"):
        yield f"https://127.0.0.1:{port}"
