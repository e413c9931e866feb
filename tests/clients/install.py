"""Installs the clients into `.clients/installed/`, each in the version that was tried."""

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
INSTALLED = REPOSITORY / ".clients" / "installed"
SEEN = REPOSITORY / ".clients" / "seen"
SILLYTAVERN = "sillytavern@1.19.0"
CODEX = "@openai/codex@0.169.0"
AI_SDK = ("ai@6.0.325", "@ai-sdk/openai@3.0.141", "@ai-sdk/anthropic@3.0.140", "zod@4.6.7")
OPEN_WEBUI = "open-webui==0.12.4"
# Any range would bring gigabytes of the build for CUDA.
TORCH = "torch==2.13.0"


def sillytavern() -> Path:
    """The folder of SillyTavern; needs Node.js and npm."""
    return _from_npm("sillytavern", SILLYTAVERN) / "sillytavern"


def codex() -> Path:
    """The program of Codex; needs Node.js and npm."""
    return _from_npm("codex", CODEX) / ".bin" / "codex"


def ai_sdk() -> Path:
    """A folder whose modules are the AI SDK and its providers; needs Node.js and npm."""
    return _from_npm("ai-sdk", *AI_SDK)


def open_webui() -> Path:
    """The program of Open WebUI, in an environment of its own; needs Python 3.11 or 3.12."""
    folder = INSTALLED / "open-webui"
    if not _is_done(folder, OPEN_WEBUI):
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        _run([*pip, TORCH], INSTALLED)
        _run([*pip, TORCH, OPEN_WEBUI], INSTALLED)
        _done(folder, OPEN_WEBUI)
    return folder / "bin" / "open-webui"


def _from_npm(name: str, *packages: str) -> Path:
    """The folder `node_modules` with these packages."""
    folder, what = INSTALLED / name, " ".join(packages)
    if not _is_done(folder, what):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text("{}\n", encoding="utf-8")
        _run(["npm", "install", "--no-audit", "--no-fund", *packages], folder)
        _done(folder, what)
    return folder / "node_modules"


def _is_done(folder: Path, what: str) -> bool:
    stamp = folder / "installed"
    return stamp.exists() and stamp.read_text(encoding="utf-8") == what


def _done(folder: Path, what: str) -> None:
    (folder / "installed").write_text(what, encoding="utf-8")


def _run(command: Sequence[str], folder: Path) -> None:
    print(f"Installing: {' '.join(command)}", flush=True)
    if subprocess.run(["nice", *command], cwd=folder, check=False).returncode:
        sys.exit(f"That failed in {folder}; the reason is above.")
