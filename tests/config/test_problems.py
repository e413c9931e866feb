"""Every mistake says where it is and what to do."""

import json
import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.config.load import load_config
from enginebay.config.problems import ConfigError, is_secret
from enginebay.config.schema import Config
from tests.config.conftest import ProblemsOf

GOOD = "models:\n- name: a\n  backend: b\n  path: p\n"


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        (
            GOOD + "  reasonning: x\n",
            "5: models[0].reasonning",
            "unknown key; did you mean 'reasoning'?",
        ),
        (
            GOOD + "  temperature: 1\n",
            "5: models[0].temperature",
            "unknown key here; it belongs under 'sampling'",
        ),
        ("server:\n  hots:\n", "2: server.hots", "unknown key; did you mean 'host'?"),
        (GOOD + GOOD[8:], "5: models[1].name", "models[0].name is already 'a'"),
        ("\nport: 1\n", "2: port", "unknown key here; it belongs under 'server'"),
        pytest.param(
            "zzz: 1\n",
            "1: zzz",
            "unknown key; known: server, models, loading, plugins, cluster, responses",
            marks=pytest.mark.wing("cluster", "responses"),
        ),
        ("server:\n  port: x\n", "2: server.port", "must be a whole number, not 'x'"),
        ("server:\n  port: 1.5\n", "2: server.port", "must be a whole number, not 1.5"),
        (
            "server:\n  port: 70000\n",
            "2: server.port",
            "must be less than or equal to 65535, not 70000",
        ),
        (
            "server:\n  ping_interval: .inf\n",
            "2: server.ping_interval",
            "must be a number, not inf",
        ),
        (
            "server:\n  strict_params: maybe\n",
            "2: server.strict_params",
            "must be true or false, not 'maybe'",
        ),
        (
            "server:\n  log_level: loud\n",
            "2: server.log_level",
            "must be 'debug', 'info', 'warning' or 'error', not 'loud'",
        ),
        (
            "server:\n  cors_origins: x\n",
            "2: server.cors_origins",
            "must be a list, such as [a, b], not 'x'",
        ),
        (
            "server:\n  cors_origins:\n  - https://x\n  - 5\n",
            "4: server.cors_origins[1]",
            "must be text, not 5; put it in quotes",
        ),
        ("server:\n  host: [a]\n", "2: server.host", "must be text, not a list"),
        ("server: 5\n", "1: server", "must be a mapping, not 5"),
        ("server:\n  5: x\n", "2: server[5]", "the key 5 must be text; put it in quotes"),
        ("models:\n- 3\n", "2: models[0]", "must be a mapping, not 3"),
        ("models: {a: 1}\n", "1: models", "must be a list, such as [a, b], not a mapping"),
        (
            "server:\n  port: 1\n\n  port: 2\n",
            "4: server.port",
            "is already set on line 2; delete one of the two",
        ),
        (
            "server:\n\tport: 1\n",
            "2: column 1",
            "the line is indented with a tab; YAML wants spaces",
        ),
        ("server:\n  port: 1\n host: x\n", "3: column 2", "this begins in another column than"),
        ("server: {port: 1\n", "2: column 1", "a } or a comma is missing"),
        ("server: &x\n  port: *x\n", "1", "server.port contains itself through an alias"),
        ("a: 1\n---\nb: 1\n", "2: column 1", "a second document begins here; delete the line"),
        ("a: 1\nb: \x07\n", "2", "the character U+0007 is not allowed in YAML; delete it"),
    ],
)
def test_one_problem(problems_of: ProblemsOf, text: str, where: str, message: str) -> None:
    [found] = problems_of(text)
    assert found.startswith(f"config.yml:{where}: {message}")


TEXT = "; put it in quotes"


@pytest.mark.parametrize(
    ("value", "column", "message"),
    [
        (
            r'"C:\Users\me"',
            12,
            "a \\ in double quotes begins an escape; put Windows paths in",
        ),
        (
            r'"C:\models"',
            11,
            "a \\ in double quotes begins an escape; put Windows paths in",
        ),
        (
            r'"\\server\share"',
            17,
            "a \\ in double quotes begins an escape; put Windows paths in",
        ),
        ("C: models", 8, f"the text has a colon and a space in it{TEXT}"),
        ("@home", 7, f"text cannot begin with @{TEXT}"),
        ("`x`", 7, f"text cannot begin with `{TEXT}"),
        ("%TEMP%", 7, f"text cannot begin with %{TEXT}"),
        ("*.gguf", 7, f"text cannot begin with *{TEXT}"),
        ("* x", 8, f"text cannot begin with *{TEXT}"),
        ("& x", 8, f"text cannot begin with &{TEXT}"),
        ("!env X", 7, f"text cannot begin with !{TEXT}"),
        ("{{ x }}", 8, f"text cannot begin with {{{TEXT}"),
        ("|x", 8, f"text cannot begin with | or >{TEXT}"),
        ("? x", 7, f"text cannot begin with ?{TEXT}"),
        ("- x", 7, "a list begins on a line of its own; put text that begins with - in quotes"),
        ("=", 7, "put this text in quotes"),
        ("!!python/name:os.system x", 7, "tags (!!) are not accepted; delete it"),
        ("'it's'", 11, "there is more text after the closing quote; put the other kind of quotes"),
        ("[a, b", 12, "a ] or a comma is missing; put text that begins with [ or { in quotes"),
        ("[a]]", 10, "there is a ] too many; put text with it in quotes"),
        ('"a', 9, "a quote is not closed"),
        ("\tx", 7, "there is a tab; YAML wants spaces"),
    ],
)
def test_what_yaml_takes_for_something_else(
    problems_of: ProblemsOf, value: str, column: int, message: str
) -> None:
    # EVE-5: the parser's own words say nothing to somebody who does not know YAML.
    [found] = problems_of(f"path: {value}")
    assert found.startswith(f"config.yml:1: column {column}: {message}")


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("host:x\nport: 1\n", "2: column 5", "the line above has no space after its colon"),
        ("a: 1\nhost:x\nport: 1\n", "3: column 1", "a key needs a colon and a space after it"),
        ("server:\n  a: 1\n   b: 2\n", "3: column 5", "this key is indented more than the one"),
        ("models:\n- name: a\n path: b\n", "3: column 2", "this begins in another column than"),
        ("%TEMP%: 1\n", "1: column 6", "text cannot begin with %; put it in quotes"),
        ("%x: 1\n", "2: column 1", "text cannot begin with %; put it in quotes"),
        ("server:\n\u00a0 port: 1\n", "2: \u00a0 port", "unknown key: an invisible character"),
    ],
)
def test_keys_that_yaml_does_not_find(
    problems_of: ProblemsOf, text: str, where: str, message: str
) -> None:
    # EVE-5
    [found] = problems_of(text)
    assert found.startswith(f"config.yml:{where}: {message}")


ORIGIN = "must be scheme, host and port as browsers send them, such as "
NAME = "must be a host name without scheme and port, such as "


@pytest.mark.parametrize(
    ("key", "written", "message"),
    [
        ("cors_origins", "https://chat.example/", f"{ORIGIN}'https://chat.example'"),
        ("cors_origins", "chat.example:3000", f"{ORIGIN}'https://chat.example:3000'"),
        ("cors_origins", "HTTP://Chat.example", f"{ORIGIN}'http://chat.example'"),
        ("cors_origins", "https://*.example", f"{ORIGIN}'https://chat.example'"),
        ("cors_origins", "http://", f"{ORIGIN}'https://chat.example'"),
        ("allowed_hosts", "https://llm.example/v1", f"{NAME}'llm.example'"),
        ("allowed_hosts", "llm.example:5000", f"{NAME}'llm.example'"),
        ("allowed_hosts", ".llm.example", "must be a host name without scheme and port, not"),
        ("allowed_hosts", "//", "must be a host name without scheme and port, not '//'"),
    ],
)
def test_what_no_browser_sends(
    problems_of: ProblemsOf, key: str, written: str, message: str
) -> None:
    """It would never be met, and nothing would say why."""
    [found] = problems_of(f"server:\n  {key}: ['{written}']\n")
    assert found.startswith(f"config.yml:2: server.{key}[0]: {message}")
    assert found.endswith(f", not {written!r}")


@pytest.mark.parametrize(
    "server",
    [
        {"cors_origins": ["*", "null", "file://", "app://x", "chrome-extension://a_b"]},
        {"cors_origins": ["http://localhost:3000", "https://a-b.c.example", "http://[::1]:80"]},
        {"allowed_hosts": ["llm.example", "*.my-tailnet.ts.net", "*", "LLM.example", "_x.a"]},
    ],
)
def test_what_browsers_send(server: dict[str, list[str]]) -> None:
    assert (
        Config.model_validate({"server": server}).model_dump()["server"].items() >= server.items()
    )


def test_what_is_missing_is_on_the_line_of_its_mapping(problems_of: ProblemsOf) -> None:
    found = problems_of("server:\n  port: 1\nmodels:\n- name: a\n  path: b\n- path: b\n")
    assert [line.partition(": is missing: ")[0] for line in found] == [
        "config.yml:4: models[0].backend",
        "config.yml:6: models[1].name",
        "config.yml:6: models[1].backend",
    ]
    assert "The engine that runs the model" in found[0]


def test_all_problems_in_one_go(problems_of: ProblemsOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBAY_SERVER__PROT", "1")
    monkeypatch.setenv("ENGINEBAY_SERVER__PING_INTERVAL", "soon")
    monkeypatch.setenv("ENGINEBAY_MODELS__7__PATH", "x")
    monkeypatch.setenv("ENGINEBAY_MODELS__PATH", "x")
    monkeypatch.setenv("ENGINEBAY_MODELS__0__OPTIONS", "{")
    monkeypatch.setenv("ENGINEBAY_SERVER__HOST__NAME", "x")
    text = GOOD + GOOD.removeprefix("models:\n") + "  tools: 1\nserver:\n  host: h\n  host: i\n"
    found = problems_of(text, server__port=-1)
    assert found[:7] == [
        "ENGINEBAY_MODELS__0__OPTIONS: models[0].options: is not valid JSON: Expecting property "
        "name enclosed in double quotes: line 1 column 2 (char 1)",
        "ENGINEBAY_MODELS__7__PATH: models[7].path: models has 2 entries; variables of the first "
        "begin with ENGINEBAY_MODELS__0__",
        "ENGINEBAY_MODELS__PATH: models.path: models has 2 entries; variables of the first begin "
        "with ENGINEBAY_MODELS__0__",
        "ENGINEBAY_SERVER__HOST__NAME: server.host.name: server.host has no keys of its own",
        "--port: server.port: must be greater than or equal to 0, not -1",
        "ENGINEBAY_SERVER__PING_INTERVAL: server.ping_interval: must be a number, not 'soon'",
        "ENGINEBAY_SERVER__PROT: server.prot: unknown key; did you mean 'port'?",
    ]
    assert found[7:] == [
        "config.yml:5: models[1].name: models[0].name is already 'a'; choose another name",
        "config.yml:8: models[1].tools: must be text, not 1; put it in quotes",
        "config.yml:11: server.host: is already set on line 10; delete one of the two",
    ]


def test_a_repeated_key_counts_once_however_often_it_is_named(problems_of: ProblemsOf) -> None:
    text = (
        "models:\n"
        "- {name: a, backend: b, path: p, options: &x\n"
        "    {k: 1, k: 2}}\n"
        "- {name: c, backend: b, path: p, options: *x}\n"
    )
    [found] = problems_of(text)
    assert found.startswith("config.yml:3: models[0].options.k: is already set on line 3")


def test_a_merged_key_is_where_it_was_written(problems_of: ProblemsOf) -> None:
    text = "models:\n- &m\n  name: a\n  backend: b\n  path: p\n  tools: 1\n- <<: *m\n  name: 5\n"
    assert [line.partition(": must")[0] for line in problems_of(text)] == [
        "config.yml:6: models[0].tools",
        "config.yml:6: models[1].tools",
        "config.yml:8: models[1].name",
    ]


@pytest.mark.parametrize("text", ["", "\n", "# only this\n", "---\n", "- a\n", "text\n", "5\n"])
def test_nothing_to_configure(problems_of: ProblemsOf, text: str) -> None:
    [found] = problems_of(text)
    assert "the file" in found
    assert "- name: my-model" in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 2020-13-41\n", "month must be in 1..12; put the value in quotes if it is text"),
        ("? [[]]\n: x\n", "cannot parse this as YAML: unhashable type: 'list'"),
        ("a: " + "[" * 5000, ""),
    ],
)
def test_what_ruamel_stumbles_over(problems_of: ProblemsOf, text: str, message: str) -> None:
    [found] = problems_of(text)
    assert found.startswith(f"config.yml: {message}")


def test_no_file() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None)
    assert "config.yml: no such file in" in str(caught.value)
    assert "--config PATH" in str(caught.value)
    assert "- name: my-model" in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the file cannot be read: "):
        load_config(tmp_path)


@pytest.mark.parametrize("device", [False, True])
def test_a_file_without_an_end(tmp_path: Path, device: bool) -> None:
    path = Path("/dev/zero") if device else tmp_path / "config.yml"
    if not device:
        os.mkfifo(path)
    with pytest.raises(ConfigError, match="this is a pipe, a device or a socket"):
        load_config(path)


def test_not_utf8() -> None:
    Path("config.yml").write_bytes("server:\n  host: ü\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"config\.yml:2: the text is not UTF-8"):
        load_config(None)


@pytest.mark.parametrize("keys", ["s3cret", "[5, s3cret]", "['s3 cret']", "['']", "['sécret']"])
def test_a_wrong_key_is_not_printed(problems_of: ProblemsOf, keys: str) -> None:
    """An empty key would let in requests without one; others no header can carry."""
    [found] = problems_of(f"server:\n  api_keys: {keys}\n")
    assert found.startswith("config.yml:2: server.api_keys")
    assert "cret" not in found


@pytest.mark.parametrize(
    ("path", "secret"),
    [
        (("server", "api_keys", 0), True),
        (("models", 0, "options", "hf_token"), True),
        (("models", 0, "options", "PASSWORD"), True),
        (("models", 0, "sampling", "max_tokens"), False),
        (("models", 0, "options", "tokenizer"), False),
        (("server", "port"), False),
    ],
)
def test_is_secret(path: tuple[str | int, ...], secret: bool) -> None:
    assert is_secret(path) is secret


def test_two_models_of_one_name_in_code() -> None:
    model = {"name": "a", "backend": "b", "path": "p"}
    with pytest.raises(ValueError, match=r"models\[0\].name is already 'a'"):
        Config.model_validate({"models": [model, model]})


FRAGMENTS = [
    *("server", "models", "plugins", "port", "name", "options", "sampling", "stop", "<<", "a"),
    *(": ", ":", "\n", "\n  ", "\n    ", "\n- ", "- ", "  ", "\t", "{", "}", "[", "]", ", ", "? "),
    *("&x ", "*x", "&y ", "*y", "!t ", "!!int ", "!!binary ", "!!set ", "!!omap ", "'", '"', "|"),
    *(">", "# c", "---", "...", "%YAML 1.1", "~", "1", "1.5", ".inf", "2020-13-41", "0x_", "1:61"),
    *("2001-02-03T04:05:06+99:99", "\x07", "\x00", "\x85", "\u2028", "\ufeff", "\ud7ff", "😀"),
]


def load_text(text: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.yml"
        path.write_bytes(text.encode(errors="surrogatepass"))
        with suppress(ConfigError):
            load_config(path)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join) | st.text())
def test_any_text_loads_or_is_a_config_error(text: str) -> None:
    load_text(text)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "port", "stop", "x", "options", "0"]), inner)
    ),
    max_leaves=8,
)
names = st.sampled_from(["server", "models", "plugins", "x"])


@given(st.dictionaries(names, values | st.lists(values, max_size=2)))
def test_any_data_loads_or_is_a_config_error(data: Any) -> None:
    load_text(json.dumps(data))


@given(
    st.lists(st.sampled_from(["SERVER", "MODELS", "0", "1", "PORT", "OPTIONS", "API_KEYS", ""])),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
)
def test_any_variable_loads_or_is_a_config_error(parts: list[str], text: str) -> None:
    with patch.dict(os.environ, {"ENGINEBAY_" + "__".join(parts): text}):
        load_text(GOOD)
