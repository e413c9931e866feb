"""Files of TabbyAPI: each of their settings is answered with what it is here."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.config.keys import load_keys
from enginebay.config.load import load_config
from enginebay.config.problems import ConfigError
from enginebay.config.schema import Config
from enginebay.config.tabbyapi import KEYS, SETTINGS, keys_of_tabbyapi, settings_of_tabbyapi
from enginebay.config.walk import known_keys
from enginebay.models.check_config import check_config, option_names
from enginebay.plugins import Plugins
from tests.config.conftest import ProblemsOf, WriteConfig
from tests.support import REPOSITORY

DOCUMENTED = (
    (REPOSITORY / "docs" / "guides" / "tabbyapi.md").read_text(encoding="utf-8").splitlines()
)


def rows() -> Iterator[str]:
    """The table of `docs/guides/tabbyapi.md`: keys of a section that are the same in one row."""
    for section, settings in SETTINGS.items():
        for here in dict.fromkeys(settings.values()):
            names = [f"`{section}.{name}`" for name, said in settings.items() if said == here]
            yield f"| {', '.join(names)} | {here} |"


def test_every_setting_is_in_the_documentation() -> None:
    assert [row for row in rows() if row not in DOCUMENTED] == []


def test_what_a_setting_is_here_exists() -> None:
    schema = Config.model_json_schema()
    known = {name for entry in Plugins().backends.values() for name in option_names(entry)}
    known |= {*known_keys(schema, ()), *known_keys(schema, ("models", 0))}
    for section in ("server", "loading"):
        known |= {f"{section}.{name}" for name in known_keys(schema, (section,))}
    values_and_folders = {"auto", "none", "required", "sampler_overrides", "templates"}
    values_and_folders |= set(Plugins().tools)
    for here in (here for settings in SETTINGS.values() for here in settings.values()):
        assert set(re.findall(r"`([\w.]+)", here)) <= known | values_and_folders, here


def test_a_config_of_tabbyapi(problems_of: ProblemsOf) -> None:
    assert problems_of(
        "network:\n"
        "  host: 0.0.0.0\n"
        "  disable_auth: false\n"
        "  api_servers: [OAI]\n"
        "logging: {log_prompt: }\n"
        "model:\n"
        "  model_name: Qwen3-8B-exl2\n"
        "  max_seq_len: 8192\n"
        "  cache_mod: Q8\n"
        "draft_model:\n"
        "  draft_model_name:\n"
        "sampling: {override_preset: safe_defaults}\n"
    ) == [
        "config.yml:2: network.host: is a TabbyAPI setting; here it is `server.host`",
        "config.yml:3: network.disable_auth: is a TabbyAPI setting; here it is "
        "`server.auth`: `none` for "
        "true, `required` for false",
        "config.yml:4: network.api_servers: is a TabbyAPI setting with no counterpart "
        "here; delete it",
        "config.yml:5: logging: is a TabbyAPI section; delete it",
        "config.yml:7: model.model_name: is a TabbyAPI setting; here it is `name` and "
        "`path` of the first "
        "of `models`",
        "config.yml:8: model.max_seq_len: is a TabbyAPI setting; here it is "
        "`context_length` in `options` "
        "of the model",
        "config.yml:9: model.cache_mod: unknown key, in TabbyAPI too",
        "config.yml:10: draft_model: is a TabbyAPI section; delete it",
        "config.yml:12: sampling.override_preset: is a TabbyAPI setting; here it is "
        "`sampling_preset` of "
        "the model; files stay in `sampler_overrides/`",
    ]


def test_its_sample_config(problems_of: ProblemsOf) -> None:
    # FIX-7
    sample = Path(__file__).with_name("tabbyapi_config.yml").read_text(encoding="utf-8")
    keys = [line for line in sample.splitlines() if line.startswith("  ")]
    said = problems_of(sample)
    assert len(said) == len(keys) == 71
    assert [problem for problem in said if "is a TabbyAPI setting" not in problem] == []
    counterparts = {
        "network.sse_ping_interval": "`server.ping_interval`",
        "model.template_vars_default": "`template_vars`",
        "model.template_vars_force": "`force_template_vars`",
        "model.start_in_reasoning": "`reasoning_start`",
        "model.tool_calls_in_reasoning": "`tools_in_reasoning`",
        "model.reasoning_budget_tokens": "`reasoning_budget`",
        "model.reasoning_budget_message": "`reasoning_budget_message`",
        "model.harmony": "`harmony`",
        "model.muse_glimmer": "`muse`",
    }
    for key, here in counterparts.items():
        [problem] = [problem for problem in said if f" {key}: " in problem]
        assert here in problem


@pytest.mark.parametrize("text", ["sampling: {top_k: 1}", "model: {name: a}", "lora: x", "model:"])
def test_what_is_not_of_tabbyapi(problems_of: ProblemsOf, text: str) -> None:
    [found] = problems_of(text)
    assert found.startswith(f"config.yml:1: {text.partition(':')[0]}: unknown key; ")


def test_its_names_in_our_sections(write: WriteConfig, problems_of: ProblemsOf) -> None:
    [found] = problems_of("server: {disable_auth: true}\n")
    assert found.startswith(
        "config.yml:1: server.disable_auth: unknown key; this setting of TabbyAPI is "
        "`server.auth`: "
    )
    path = write("models: [{name: a, backend: hf, path: ., options: {max_seq_len: 8192}}]\n")
    [problem] = check_config(load_config(path), Plugins())
    assert str(problem) == (
        "config.yml:1: models[0].options.max_seq_len: unknown key; this setting of TabbyAPI is "
        "`context_length` in `options` of the model"
    )


def test_keys_of_tabbyapi(tmp_path: Path) -> None:
    path = tmp_path / "api_tokens.yml"
    path.write_text("admin_key: s3cret\napi_key: s3cret\nkey: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_keys(path)
    assert [str(problem) for problem in caught.value.problems] == [
        f"{path}:1: admin_key: is a TabbyAPI setting; here it is "
        f"`{{name: admin, role: admin, key: ...}}` "
        "in the list `keys`",
        f"{path}:2: api_key: is a TabbyAPI setting; here it is "
        f"`{{name: user, key: ...}}` in the list "
        "`keys`",
        f"{path}:3: key: unknown key; did you mean 'keys'?",
    ]


ANYTHING = st.recursive(
    st.none() | st.integers() | st.sampled_from(["host", "port"]),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from([*SETTINGS, *KEYS, "host", 5]), inner)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*SETTINGS, *KEYS, 5]), ANYTHING))
def test_any_data_can_be_looked_at(data: dict[object, object]) -> None:
    for path, message in (*settings_of_tabbyapi(data), *keys_of_tabbyapi(data)):
        assert path[0] in data
        assert message
