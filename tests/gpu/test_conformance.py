"""The checks of the protocol pass over every engine on the device, as they do on a CPU."""

from collections.abc import Callable

import pytest

from enginebay_conformance.checks import CHECKS
from enginebay_conformance.endpoint import connect
from enginebay_conformance.run_checks import run_checks
from tests.gpu.targets import MAIN, params
from tests.support import Server

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.parametrize("target", params(MAIN), indirect=True),
]


def test_the_protocol(server: Server, record_property: Callable[[str, object], None]) -> None:
    with connect(server.url) as endpoint:
        results = list(run_checks(endpoint, CHECKS))
    passed = [result for result in results if result.outcome == "pass"]
    record_property("checks passed", len(passed))
    record_property("checks without an occasion", len(results) - len(passed))
    assert {r.check.name: r.seen for r in results if r.outcome == "fail"} == {}
    assert len(passed) > len(results) / 2
