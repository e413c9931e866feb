"""`enginebay conformance`."""

from enginebay_conformance.checks import CHECKS
from tests.cli.conftest import Run
from tests.conformance.conftest import model, say
from tests.conftest import ServeScripted


def test_a_server_that_conforms(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(say, **model())
    result = run("conformance", server.url)
    assert result.exit_code == 0, result.stdout
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert lines["row"].split() == ["row", "what", "result", "seen"]
    assert " pass" in lines["MLC-13"]
    assert " pass" in lines["VLLM-41"]
    assert f"{len(CHECKS)} checks: {len(CHECKS) - 1} pass, 0 fail, 1 skip" in result.stderr


def test_a_server_that_does_not(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted([], server={"cors_origins": ["*"]})
    result = run("conformance", server.url)
    assert result.exit_code == 1
    [line] = [line for line in result.stdout.splitlines() if "web page" in line]
    assert line.startswith("-")
    assert "fail" in line
    assert "access-control-allow-origin is '*'" in line
    assert "the model made no call" in result.stdout


def test_a_key_is_needed(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(say, **model(server={"api_keys": ["one"]}))
    result = run("conformance", server.url)
    assert result.exit_code == 1
    assert "401" in result.stderr
    assert run("conformance", server.url, "--api-key", "one").exit_code == 0


def test_a_model_that_is_not_there(run: Run, serve_scripted: ServeScripted) -> None:
    result = run("conformance", serve_scripted(["ok"]).url, "--model", "nobody")
    assert result.exit_code == 1
    assert "has no model nobody; it lists: scripted" in result.stderr


def test_nobody_is_there(run: Run) -> None:
    result = run("conformance", "127.0.0.1:1")
    assert result.exit_code == 1
    assert result.stderr.startswith("nothing answers at http://127.0.0.1:1")
