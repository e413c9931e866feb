"""The checks pass for the demo model, whatever backend it runs on.

A new backend is a fixture that has the URL of a server, and its name in `BACKENDS`.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from demo.to_gguf import convert
from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from enginebay_conformance.checks import CHECKS
from enginebay_conformance.endpoint import Endpoint, connect
from enginebay_conformance.run_checks import Check
from tests.conformance.test_checks import NO_KEY, made
from tests.effort import some
from tests.outsider import Outsider
from tests.support import DEMO_MODEL, REPOSITORY, Server, serve

DEMO = {
    "ids_with_slashes_can_be_retrieved": "no model has a slash in its id",
    "text_is_not_escaped": "the model generated nothing outside ASCII",
    "empty_schemas_do_no_harm": "the model did not come to an end",
}
NO_GRAMMARS = {c.name: "the server says: " for c in CHECKS if c.optional == "grammars"}
NO_TOKENS = {
    check.name: "the server says: "
    for check in CHECKS
    if check.optional in ("prompts", "continuous usage")
} | {
    "answers_are_one_of_the_choices": "the server says: ",  # of completions, too
    "times_of_grammars_are_numbers": "usage has no times of a grammar",
}
BACKENDS: dict[str, Mapping[str, str]] = {
    "hf": DEMO,
    "llamacpp": DEMO,
    "remote": DEMO | NO_GRAMMARS,
    "remote_chat": DEMO | NO_TOKENS,
    "onnx": DEMO,
}
"""What each gives no occasion to see, and why: how the reason begins."""


@pytest.fixture(scope="module")
def hf(demo: Server) -> str:
    return demo.url


@pytest.fixture(scope="module")
def llamacpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file = tmp_path_factory.mktemp("llamacpp") / "demo.gguf"
    convert(DEMO_MODEL, file, "f16")
    options = {"threads": 1}
    entry = {"name": "demo", "backend": "llamacpp", "path": str(file), "options": options}
    with serve(Config.model_validate({"models": [entry]}), Plugins()) as server:
        yield server.url


@pytest.fixture(scope="module")
def remote(
    outsider: Outsider, demo: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A second Enginebay, the one in front, installed as its users have it."""
    folder = tmp_path_factory.mktemp("remote")
    with _in_front_of(demo, outsider, folder, {"tokenizer": str(DEMO_MODEL)}) as url:
        yield url


@pytest.fixture(scope="module")
def remote_chat(
    outsider: Outsider, demo: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The same without a tokenizer, so that messages are passed on unrendered."""
    with _in_front_of(demo, outsider, tmp_path_factory.mktemp("remote_chat"), {}) as url:
        yield url


@contextmanager
def _in_front_of(
    server: Server, outsider: Outsider, folder: Path, options: dict[str, str]
) -> Iterator[str]:
    outsider.install(REPOSITORY / "examples" / "enginebay-remote")
    entry = {"name": "demo", "backend": "remote", "path": server.url, "options": options}
    with outsider.serve(folder, json.dumps({"models": [entry]})) as url:
        yield url


@pytest.fixture(scope="module")
def onnx(outsider: Outsider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    outsider.install(REPOSITORY / "examples" / "enginebay-onnx")
    folder = tmp_path_factory.mktemp("onnx")
    command = ("python", "-m", "enginebay_onnx.convert", str(DEMO_MODEL), "model")
    converted = outsider.run(*command, cwd=folder)
    assert not converted.returncode, converted.stderr
    entry = {"name": "demo", "backend": "onnx", "path": "model", "options": {"threads": 1}}
    with outsider.serve(folder, json.dumps({"models": [entry]})) as url:
        yield url


@pytest.fixture(scope="module", params=some(BACKENDS, ("hf", "remote")))
def backend(request: pytest.FixtureRequest) -> Iterator[tuple[str, Endpoint]]:
    with connect(request.getfixturevalue(request.param)) as endpoint:
        yield request.param, endpoint


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_backend(backend: tuple[str, Endpoint], check: Check) -> None:
    name, endpoint = backend
    skipped = {**NO_KEY, **BACKENDS[name]}.get(check.name)
    outcome, seen = made(endpoint, check)
    assert outcome == ("skip" if skipped else "pass"), seen
    assert seen.startswith(skipped or "")
