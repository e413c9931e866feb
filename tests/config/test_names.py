"""What models of a config say of each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.config.load import load_config
from enginebay.config.loading import bytes_of
from enginebay.config.names import name_problems, without_likes
from enginebay.models.check_config import check_config
from enginebay.plugins import Plugins
from tests.config.conftest import ProblemsOf, WriteConfig
from tests.support import plugins_with, scripted

A = "models:\n- name: a\n  backend: b\n  path: .\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            f"{A}  aliases: [a]\n",
            "config.yml:5: models[0].aliases[0]: models[0].name is already 'a'; "
            "choose another name",
        ),
        (
            f"{A}- {{name: b, like: a, aliases: [c, c]}}\n",
            "config.yml:5: models[1].aliases[1]: models[1].aliases[0] is already 'c'",
        ),
        (
            f"server: {{use_dummy_models: true, dummy_model_names: [a]}}\n{A}",
            "config.yml:1: server.dummy_model_names[0]: models[0].name is already 'a'",
        ),
        (
            f"{A}- name: b\n  like: aa\n",
            "config.yml:6: models[1].like: there is no model 'aa'; did",
        ),
        (
            "models:\n- {name: a, like: b}\n- {name: b, like: a}\n",
            "config.yml:2: models[0].like: this is circular",
        ),
        (f"{A}  like: a\n", "config.yml:5: models[0].like: this is circular"),
        (f"{A}- {{name: b}}\n", "config.yml:5: models[1].backend: is missing: The engine that"),
        (f"{A}  idle_timeout: -1\n", "config.yml:5: models[0].idle_timeout: must be greater than"),
        (f"{A}  load: never\n", "config.yml:5: models[0].load: must be 'start', 'request' or"),
        (
            "loading: {max_ram: 8GB}\n",
            "config.yml:1: loading.max_ram: must be a number or a percentage such as 80%",
        ),
        (
            "loading: {max_gpu: 120%}\n",
            "config.yml:1: loading.max_gpu: must be a number or a percentage",
        ),
        ("loading: {max_gpu: 0}\n", "config.yml:1: loading.max_gpu: must be greater than 0"),
    ],
)
def test_what_is_wrong(problems_of: ProblemsOf, text: str, found: str) -> None:
    assert problems_of(text)[0].startswith(found), problems_of(text)


def test_dummy_names_are_no_names_unless_they_are_used(write: WriteConfig) -> None:
    assert load_config(write(f"{A}  aliases: [gpt-3.5-turbo]\n")).models[0].aliases


def test_an_entry_like_another(write: WriteConfig) -> None:
    like = "- {name: b, like: a, options: {y: 2}, sampling: {top_k: 5}}\n- {name: c, like: b}\n"
    text = f"{A}  options: {{x: 1}}\n  sampling: {{top_k: 1, top_p: 0.5}}\n  aliases: [z]\n{like}"
    config = load_config(write(text))
    for model in config.models[1:]:
        assert (model.backend, model.path, model.aliases) == ("b", ".", [])
        assert model.options == {"x": 1, "y": 2}
        assert model.sampling.params == {"top_k": 5, "top_p": 0.5}
    assert type(config).model_validate(config.model_dump()).models == config.models


def test_a_mistake_is_named_where_it_stands(write: WriteConfig) -> None:
    text = "models:\n- {name: a, backend: nobody, path: .}\n- {name: b, like: a, path: nowhere}\n"
    found = [str(problem) for problem in check_config(load_config(write(text)), Plugins())]
    assert [line.partition(": ")[2].split(":")[0] for line in found] == [
        "models[0].backend",
        "models[1].path",
    ]


def test_who_shares_an_engine_shares_its_queue(write: WriteConfig) -> None:
    first = "models:\n- {name: a, backend: scripted, path: ., max_queue: 9}\n"
    like = "- {name: b, like: a, max_queue: 9}\n- {name: c, like: b, max_running: 1}\n"
    other = "- {name: d, like: c, options: {x: 1}, max_running: 2}\n"
    plugins = plugins_with(scripted=scripted(["ok"]))
    [found] = check_config(load_config(write(first + like + other)), plugins)
    assert str(found) == (
        "config.yml:4: models[2].max_running: it shares the engine of 'a'; set this there for both"
    )


def test_more_models_at_start_than_there_is_room_for(write: WriteConfig) -> None:
    entries = "".join(f"- {{name: m{n}, backend: hf, path: ., like: m0}}\n" for n in range(1, 3))
    first = "models:\n- {name: m0, backend: hf, path: .}\n"
    room = "loading: {max_loaded_models: 1}\n"
    assert check_config(load_config(write(f"{room}{first}{entries}")), Plugins()) == []
    another = "- {name: m4, backend: hf, path: .}\n"  # alike, but nobody said so
    [found] = check_config(load_config(write(f"{room}{first}{another}")), Plugins())
    assert str(found) == (
        "config.yml:1: loading.max_loaded_models: 2 models are loaded at start; set "
        "`load: request` for some"
    )


@pytest.mark.parametrize(
    ("size", "expected"), [(None, None), (2, 2**31), (0.5, 2**29), ("50%", 500), ("12.5 %", 125)]
)
def test_sizes(size: float | str | None, expected: int | None) -> None:
    assert bytes_of(size, 1000) == expected


NAMES = st.sampled_from(["a", "b", "c", "d"])
ENTRIES = st.fixed_dictionaries(
    {}, optional={"name": NAMES, "like": NAMES, "aliases": st.lists(NAMES), "path": st.text()}
)
ANYTHING = st.recursive(st.none() | st.integers() | NAMES, st.lists, max_leaves=5)


@given(st.lists(ENTRIES | ANYTHING, max_size=6))
def test_any_data_can_be_looked_at(models: list[object]) -> None:
    """Circles, names that stand twice and what is no entry at all end without an error."""
    joined = without_likes(models)
    assert len(joined) == len(models)
    for before, after in zip(models, joined, strict=True):
        if isinstance(before, dict):
            assert {**after, **before} == after
    for path, message in name_problems({"models": models}):
        assert path[0] == "models"
        assert message
