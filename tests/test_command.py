"""The wheel, next to other people's packages that have the names of our folders.

Only the libraries that Enginebay needs without extras are there: no torch, no `openai`, no Pillow.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.outsider import ROOTS, Outsider
from tests.support import DEMO_MODEL, REPOSITORY
from tests.test_docs import block

FOREIGN = (*ROOTS, "conformance", "templates", "tests")
"""Names of our folders, which other people's packages may have."""
ABSENT = ("torch", "openai", "PIL", "cryptography", "fastapi_offline", "pynvml")
SEES = """
from enginebay import EngineBackend, hookimpl
from enginebay.testing import ScriptedEngine

def create(settings):
    return EngineBackend(lambda: ScriptedEngine(["ok"], media=["image"]))

@hookimpl
def register_backends(register):
    register("sees", create, needs_path=False)
"""
CONFIG = """
models:
  - {name: polly, backend: parrot}
  - {name: apart, backend: just-made, path: text.txt, isolation: process}
  - {name: sees, backend: sees}
"""
PICTURE = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need a right on Windows")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Outsider:
    pytest.importorskip("hatchling")
    outsider = Outsider(tmp_path_factory.mktemp("stranger"), needs=["enginebay"])
    for name in FOREIGN:
        (outsider.packages / name).mkdir()
        foreign = outsider.packages / name / "__init__.py"
        foreign.write_text("raise SystemExit('never imported')", encoding="utf-8")
    return outsider


@pytest.fixture(scope="module")
def url(stranger: Outsider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with plugins in files, a new package and an example."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "plugins").mkdir()
    for name, code in {"parrot": block("class ParrotEngine("), "sees": SEES}.items():
        (folder / "plugins" / f"{name}.py").write_text(code, encoding="utf-8")
    assert stranger.run("enginebay", "plugins", "new", "just-made", cwd=folder).returncode == 0
    stranger.install(folder / "enginebay-just-made", extra="")
    stranger.install(REPOSITORY / "examples" / "enginebay-translate", extra="")
    (folder / "text.txt").write_text("The train went up and down. " * 9, encoding="utf-8")
    with stranger.serve(folder, CONFIG) as url:
        yield url


def test_foreign_packages_do_no_harm(stranger: Outsider, tmp_path: Path) -> None:
    help = stranger.run("enginebay", "--help", cwd=tmp_path)
    assert (help.returncode, help.stderr) == (0, "")
    assert "OpenAI-compatible server" in help.stdout
    listed = stranger.run("python", "-m", "enginebay.cli", "plugins", "list", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "never imported" not in listed.stdout + listed.stderr
    assert " left out " not in listed.stdout


def test_extras_and_the_checks_of_servers_are_not_there(stranger: Outsider, tmp_path: Path) -> None:
    names = (*ABSENT, "enginebay_conformance")
    code = f"import importlib.util as i; print([name for name in {names} if i.find_spec(name)])"
    assert stranger.run("python", "-c", code, cwd=tmp_path).stdout == "[]\n"
    assert stranger.run("enginebay", "conformance", "URL", cwd=tmp_path).returncode == 2


@pytest.mark.thorough
def test_a_plugin_in_a_file_answers(stranger: Outsider, url: str, tmp_path: Path) -> None:
    message = {"role": "user", "content": "Pretty bird"}
    answer = httpx2.post(
        f"{url}/v1/chat/completions", json={"model": "polly", "messages": [message]}
    )
    assert answer.json()["choices"][0]["message"]["content"] == "Pretty bird"
    said = stranger.run("enginebay", "chat", "--url", url, "--model", "polly", "Hi", cwd=tmp_path)
    assert said.stdout == "Hi\n", said.stderr


@pytest.mark.thorough
def test_a_package_answers_from_a_process_of_its_own(url: str) -> None:
    body = {"model": "apart", "prompt": "The", "max_tokens": 9}
    answer = httpx2.post(f"{url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 9


@pytest.mark.thorough
def test_an_example_has_its_routes(url: str) -> None:
    languages = httpx2.get(f"{url}/languages").json()
    assert {"en", "fr"} <= {language["code"] for language in languages}


@pytest.mark.thorough
def test_an_image_is_refused_without_pillow(url: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": PICTURE}}]
    body = {"model": "sees", "messages": [{"role": "user", "content": content}]}
    answer = httpx2.post(f"{url}/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert 'pip install "enginebay[media]"' in answer.json()["error"]["message"]


@pytest.mark.thorough
def test_the_documentation_of_the_api_names_its_extra(url: str) -> None:
    answer = httpx2.get(f"{url}/docs")
    assert answer.status_code < 500
    assert "enginebay[page]" in answer.text


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ("server: {tls_cert: cert.pem}", "server.tls_cert"),
        ("loading: {cache_dir: kv, cache_key_file: key}", "loading.cache_key_file"),
    ],
)
def test_encryption_names_its_extra(
    stranger: Outsider, tmp_path: Path, config: str, key: str
) -> None:
    (tmp_path / "config.yml").write_text(config, encoding="utf-8")
    checked = stranger.run("enginebay", "config", "check", cwd=tmp_path)
    assert checked.returncode == 2
    assert f"config.yml:1: {key}: " in checked.stderr
    assert 'install it with: pip install "enginebay[tls]"' in checked.stderr


def test_a_model_without_its_engine_is_not_run(stranger: Outsider, tmp_path: Path) -> None:
    run = stranger.run("enginebay", "run", str(DEMO_MODEL), "Hi", cwd=tmp_path)
    assert run.returncode == 1
    assert "pip install 'enginebay[hf]'" in run.stderr
    assert "Traceback" not in run.stderr
