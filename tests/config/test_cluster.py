"""The section `cluster` of the config and that of a model: what is wrong, and what is not."""

import pytest

from enginebay.config.load import load_config
from enginebay.models.check_config import check_config
from enginebay.plugins import Plugins
from enginebay_cluster.settings import head_address
from tests.config.conftest import ProblemsOf, WriteConfig

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


OLD = """
cluster: {}
models:
- name: far
  backend: llamacpp
  path: /m.gguf
  cluster: {replicas: 2}
  options: {context_length: 10}
- name: also
  like: far
  options: {batch_size: 3}
"""
NEW = """
cluster: {}
models:
- name: far
  backend: cluster
  path: /m.gguf
  options:
    engine: llamacpp
    replicas: 2
    options: {context_length: 10}
"""


def test_the_form_that_models_had_before(write: WriteConfig) -> None:
    config = load_config(write(OLD))
    far, also = config.models
    options = {"replicas": 2, "engine": "llamacpp", "options": {"context_length": 10}}
    assert (far.backend, far.options) == ("cluster", options)
    assert also.options == {**options, "options": {"context_length": 10, "batch_size": 3}}
    [notice] = config.origins.notices
    assert notice == (
        "config.yml:7: models[0].cluster: write `backend: cluster` instead; `cluster` is now "
        "`options`, `options` is now `options.options`, `backend` is now `options.engine`"
    )
    written = load_config(write(NEW))
    assert written.models == [far]
    assert list(written.origins.notices) == []


@pytest.mark.parametrize(
    ("text", "old", "new", "where"),
    [
        (OLD, "context_length: 10", "context: 10", "8: models[0].options.context"),
        (OLD, "batch_size: 3", "batch: 3", "11: models[1].options.batch"),
        (NEW, "context_length: 10", "context: 10", "10: models[0].options.options.context"),
        (NEW, "replicas: 2", "replica: 2", "9: models[0].options.replica"),
        (NEW, "engine:", "engin:", "7: models[0].options.engine: is missing"),
        (OLD, "cluster: {}", "", "5: models[0].backend"),
        (NEW, "cluster: {}", "", "5: models[0].backend"),
    ],
)
def test_mistakes_are_where_they_are_written(
    write: WriteConfig, text: str, old: str, new: str, where: str
) -> None:
    config = load_config(write(text.replace(old, new, 1)))
    problems = [str(each) for each in check_config(config, Plugins())]
    assert any(each.startswith(f"config.yml:{where}") for each in problems), problems
