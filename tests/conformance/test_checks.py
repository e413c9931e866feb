"""The checks pass for this server, with an engine that shows all there is and with a real model."""

import pytest

from core.testing.conformance import CHECKS, Check, Endpoint, connect, run_checks
from tests.conformance.conftest import model, say
from tests.support import plugins_with, scripted, scripted_config, serve

DEMO = {
    "ids_with_slashes_can_be_retrieved": "no model has a slash in its id",
    "text_is_not_escaped": "the model said nothing outside ASCII",
    "json_object_is_an_object": "the model did not come to an end",
    "empty_schemas_do_no_harm": "the model did not come to an end",
}
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


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_the_demo_model(demo_endpoint: Endpoint, check: Check) -> None:
    skipped = (NO_KEY | DEMO).get(check.name)
    assert made(demo_endpoint, check) == (("skip", skipped) if skipped else ("pass", ""))


def test_a_server_with_keys() -> None:
    config = scripted_config(**model(server={"api_keys": ["one"]}))
    with (
        serve(config, plugins_with(scripted=scripted(say))) as server,
        connect(server.url, api_key="one") as endpoint,
    ):
        for check in CHECKS:
            skipped = KEYS.get(check.name)
            assert made(endpoint, check) == (("skip", skipped) if skipped else ("pass", ""))
