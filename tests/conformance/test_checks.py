"""The checks pass for this server, with an engine that shows all there is."""

import pytest

from enginebay_conformance.checks import CHECKS
from enginebay_conformance.endpoint import Endpoint, connect
from enginebay_conformance.run_checks import Check, Feature, run_checks
from tests.conformance.conftest import model, say
from tests.support import plugins_with, scripted, scripted_config, serve

NO_KEY = {
    "keys_are_asked_for_in_both_headers": "no key was given, so that the server may have none"
}
KEYS = {"any_key_will_do_without_keys": "the server has keys"}


def made(endpoint: Endpoint, check: Check) -> tuple[str, str]:
    [result] = run_checks(endpoint, [check])
    return result.outcome, result.seen


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_an_engine_that_shows_everything(endpoint: Endpoint, check: Check) -> None:
    skipped = NO_KEY.get(check.name)
    assert made(endpoint, check) == (("skip", skipped) if skipped else ("pass", ""))


def test_an_engine_without_grammars() -> None:
    """What it says it cannot do is no failure; everything else it must do."""
    with (
        serve(
            scripted_config(**model()), plugins_with(scripted=scripted(say, constraints=False))
        ) as server,
        connect(server.url) as endpoint,
    ):
        for check in CHECKS:
            outcome, seen = made(endpoint, check)
            if check.optional == "grammars":
                assert outcome == "skip"
                assert "has no constrained decoding" in seen
            else:
                assert (outcome, seen) in (("pass", ""), ("skip", NO_KEY.get(check.name)))


def test_only_what_is_optional_may_be_refused() -> None:
    def ask(server: Endpoint) -> None:
        server.chat(response_format={"type": "json_object"})

    engine = scripted(say, constraints=False)
    optionals: tuple[Feature | None, ...] = ("grammars", None)
    with (
        serve(scripted_config(**model()), plugins_with(scripted=engine)) as server,
        connect(server.url) as endpoint,
    ):
        outcomes = [made(endpoint, Check((), ask, optional))[0] for optional in optionals]
    assert outcomes == ["skip", "fail"]


def test_a_server_with_keys() -> None:
    config = scripted_config(**model(server={"api_keys": ["one"]}))
    with (
        serve(config, plugins_with(scripted=scripted(say))) as server,
        connect(server.url, api_key="one") as endpoint,
    ):
        for check in CHECKS:
            skipped = KEYS.get(check.name)
            assert made(endpoint, check) == (("skip", skipped) if skipped else ("pass", ""))
