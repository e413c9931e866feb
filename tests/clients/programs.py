"""The server and the clients as programs: what each is started with."""

import shutil
import socket
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests import proxies
from tests.clients import install
from tests.clients.install import REPOSITORY
from tests.clients.processes import running

HERE = Path(__file__).parent
KEY = "a-key-for-clients-in-tests-only"
ADMIN_KEY = "a-key-for-admins-in-tests-only"
LIMITED_KEY = "a-key-for-one-request-a-minute"
KEYS = f"""\
keys:
  - {{name: clients, key: {KEY}}}
  - {{name: admin, role: admin, key: {ADMIN_KEY}}}
  - {{name: limited, key: {LIMITED_KEY}, requests_per_minute: 1}}
"""


@contextmanager
def enginebay(
    journal: Path,
    logs: Path,
    *,
    config: str = "config",
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Our server with one of the configs in `server/`, which asks for keys; its URL.

    `settings`: others of `server`, by their names in capitals.
    """
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    file = str(HERE / "server" / f"{config}.yml")
    command = [
        sys.executable,
        "-m",
        "enginebay.cli",
        "serve",
        "--config",
        file,
        "--port",
        str(port),
    ]
    keys = logs / f"keys-{config}.yml"
    keys.touch(0o600)
    keys.write_text(KEYS, encoding="utf-8")
    env = {
        "PYTHONPATH": str(REPOSITORY),
        "CLIENTS_JOURNAL": str(journal),
        "ENGINEBAY_SERVER__KEYS_FILE": str(keys),
        "ENGINEBAY_SERVER__USAGE_FILE": "off",
        **{f"ENGINEBAY_SERVER__{name}": value for name, value in (settings or {}).items()},
    }
    log = logs / f"enginebay-{config}.log"
    with running(command, f"{url}/health", log, cwd=REPOSITORY, env=env):
        yield url


@contextmanager
def proxied(name: str, journal: Path, logs: Path) -> Iterator[str]:
    """Our server below a path of a proxy, with TLS and many pings; its URL."""
    settings = {"ROOT_PATH": "/llm", "TRUSTED_PROXIES": '["127.0.0.1"]', "PING_INTERVAL": "0.02"}
    folder = logs / name
    folder.mkdir(exist_ok=True)
    with (
        enginebay(journal, logs, settings=settings) as url,
        proxies.proxy(name, folder, url.removeprefix("http://"), "kept") as public,
    ):
        yield f"{public}/llm"


def unload(server: str, model: str) -> None:
    """Unload a model of our server, as an admin does."""
    url = f"{server}/v1/models/{model}/unload"
    headers = {"x-admin-key": ADMIN_KEY, "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, b"{}", headers), timeout=60):
        pass


@contextmanager
def sillytavern(logs: Path) -> Iterator[str]:
    """SillyTavern as it is when it is started for the first time; its URL."""
    program = install.sillytavern()
    folder = install.INSTALLED / "sillytavern"
    shutil.rmtree(folder / "data" / "default-user", ignore_errors=True)
    url = f"http://127.0.0.1:{(port := free_port())}"
    arguments = ["--dataRoot", str(folder / "data"), "--configPath", str(HERE / "sillytavern.yaml")]
    command = ["node", "server.js", *arguments, "--port", str(port)]
    with running(command, url, logs / "sillytavern.log", cwd=program):
        yield url


@contextmanager
def open_webui(
    server: str, logs: Path, *, ollama: bool = False, authority: Path | None = None
) -> Iterator[str]:
    """Open WebUI with an empty data folder, no login and one connection: ours; its URL.

    `ollama`: the connection is to an Ollama, and has no key yet. `authority`: a certificate that
    it believes, and those signed by it.
    """
    program = install.open_webui()
    data = install.INSTALLED / "open-webui" / "data"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    url = f"http://127.0.0.1:{(port := free_port())}"
    env = {
        "DATA_DIR": str(data),
        "WEBUI_AUTH": "false",
        "WEBUI_SECRET_KEY": "only for tests",
        "CORS_ALLOW_ORIGIN": url,
        "ENABLE_OPENAI_API": str(not ollama),
        "OPENAI_API_BASE_URL": f"{server}/v1",
        "OPENAI_API_KEY": KEY,
        "ENABLE_OLLAMA_API": str(ollama),
        "OLLAMA_BASE_URL": server,
        # Nothing is fetched from a hub: embeddings would come from the server, were any asked for.
        "OFFLINE_MODE": "true",
        "HF_HUB_OFFLINE": "1",
        "RAG_EMBEDDING_ENGINE": "openai",
        "RAG_OPENAI_API_BASE_URL": f"{server}/v1",
        "RAG_OPENAI_API_KEY": KEY,
        "ANONYMIZED_TELEMETRY": "false",
        "DO_NOT_TRACK": "true",
        "SCARF_NO_ANALYTICS": "true",
        **({"SSL_CERT_FILE": str(authority)} if authority else {}),
    }
    command = [str(program), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with running(command, f"{url}/health", logs / "open-webui.log", cwd=data, env=env):
        yield url


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
