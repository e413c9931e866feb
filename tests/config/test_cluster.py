"""The section `cluster` of the config and that of a model: what is wrong, and what is not."""

import pytest

from enginebay.config.cluster import head_address
from tests.config.conftest import ProblemsOf

MODEL = "models:\n- name: a\n  backend: b\n  path: p\n  cluster: {replicas: %s}\n"
REPLICAS = "models[0].cluster.replicas"


@pytest.mark.parametrize(
    ("replicas", "problem"),
    [
        ("{min: 3, max: 1}", f"{REPLICAS}: max is 1, which is less than min, 3"),
        ("{min: 0, max: 1}", f"{REPLICAS}.min: must be greater than or equal to 1, not 0"),
        ("{min: 1}", f"{REPLICAS}.max: is missing"),
        ("{min: 1, max: 2, x: 3}", f"{REPLICAS}.x: unknown key"),
        ("many", f"{REPLICAS}: must be a whole number, not 'many'"),
        ("0", "models[0].cluster: replicas must be at least 1"),
    ],
)
def test_replicas_have_one_problem(problems_of: ProblemsOf, replicas: str, problem: str) -> None:
    [found] = problems_of(MODEL % replicas)
    assert found.startswith(f"config.yml:5: {problem}")


@pytest.mark.parametrize(
    "address", ["foo", "foo:", "foo:0", "foo:99999", ":1", "http://127.0.0.1:27000", "::1:6379"]
)
def test_what_is_no_address_of_a_head(problems_of: ProblemsOf, address: str) -> None:
    [found] = problems_of(f"cluster: {{address: '{address}'}}\n")
    assert found.startswith("config.yml:1: cluster.address: must be HOST:PORT of the head")


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379", "my_head.local:1", "[fe80::1]:6379"])
def test_addresses_of_heads(address: str) -> None:
    assert head_address(address) == address
