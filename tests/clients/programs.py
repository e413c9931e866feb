"""The server and the clients as programs: what each is started with."""

import shutil
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.clients import install
from tests.clients.install import REPOSITORY
from tests.clients.processes import running

HERE = Path(__file__).parent
KEY = "a-key-for-clients-in-tests-only"
ADMIN_KEY = "a-key-for-admins-in-tests-only"
KEYS = f"""\
keys:
  - {{name: clients, key: {KEY}}}
  - {{name: admin, role: admin, key: {ADMIN_KEY}}}
"""


@contextmanager
def enginebay(journal: Path, logs: Path) -> Iterator[str]:
    """Our server with three models, which asks for keys; its URL."""
    url = f"http://127.0.0.1:{(port := _free_port())}"
    config = str(HERE / "server" / "config.yml")
    command = [sys.executable, "-m", "core.cli", "serve", "--config", config, "--port", str(port)]
    keys = logs / "keys.yml"
    keys.write_text(KEYS, encoding="utf-8")
    env = {
        "PYTHONPATH": str(REPOSITORY),
        "CLIENTS_JOURNAL": str(journal),
        "ENGINEBAY_SERVER__KEYS_FILE": str(keys),
    }
    with running(command, f"{url}/health", logs / "enginebay.log", cwd=REPOSITORY, env=env):
        yield url


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
    url = f"http://127.0.0.1:{(port := _free_port())}"
    arguments = ["--dataRoot", str(folder / "data"), "--configPath", str(HERE / "sillytavern.yaml")]
    command = ["node", "server.js", *arguments, "--port", str(port)]
    with running(command, url, logs / "sillytavern.log", cwd=program):
        yield url


@contextmanager
def open_webui(server: str, logs: Path) -> Iterator[str]:
    """Open WebUI with an empty data folder, no login and one connection: ours; its URL."""
    program = install.open_webui()
    data = install.INSTALLED / "open-webui" / "data"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    url = f"http://127.0.0.1:{(port := _free_port())}"
    env = {
        "DATA_DIR": str(data),
        "WEBUI_AUTH": "false",
        "WEBUI_SECRET_KEY": "only for tests",
        "CORS_ALLOW_ORIGIN": url,
        "OPENAI_API_BASE_URL": f"{server}/v1",
        "OPENAI_API_KEY": KEY,
        "ENABLE_OLLAMA_API": "false",
        # Nothing is fetched from a hub: embeddings would come from the server, were any asked for.
        "OFFLINE_MODE": "true",
        "HF_HUB_OFFLINE": "1",
        "RAG_EMBEDDING_ENGINE": "openai",
        "RAG_OPENAI_API_BASE_URL": f"{server}/v1",
        "RAG_OPENAI_API_KEY": KEY,
        "ANONYMIZED_TELEMETRY": "false",
        "DO_NOT_TRACK": "true",
        "SCARF_NO_ANALYTICS": "true",
    }
    command = [str(program), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with running(command, f"{url}/health", logs / "open-webui.log", cwd=data, env=env):
        yield url


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
