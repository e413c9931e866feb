"""`config.yml`, its JSON schema and its reference say what the code says."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import BaseModel

from enginebay.config.keys import KeyEntry
from enginebay.config.load import load_config
from enginebay.config.walk import schema_at
from enginebay.config.wing_sections import whole_config
from enginebay.models.check_config import check_config
from enginebay.plugins import Plugins
from enginebay_hf.options import HFOptions
from enginebay_llamacpp.options import LlamaCppOptions
from tests.config.reference import rows
from tests.support import REPOSITORY

SHIPPED = REPOSITORY / "config.yml"
Config = whole_config()
SCHEMA = Config.model_json_schema()
SECTIONS: list[tuple[str | int, ...]] = [
    (),
    ("server",),
    ("models", 0),
    ("models", 0, "sampling"),
    ("models", 0, "cluster"),
    ("loading",),
    ("cluster",),
    ("responses",),
    ("plugins",),
]


SHOWN = [("server",), ("models", 0), ("models", 0, "sampling"), ("loading",), ("plugins",)]
"""The sections of which `config.yml` shows keys."""


def keys_with_comments() -> Iterator[tuple[str, str]]:
    """Each key in a section of the file, set or not, and the comment right above it."""
    lines = SHIPPED.read_text(encoding="utf-8").splitlines()
    for above, line in pairwise(lines):
        if found := re.match(r" +#?(\w+):", line):
            yield found[1], above.strip().removeprefix("# ")


def described(path: tuple[str | int, ...] = ()) -> Iterator[tuple[str, str]]:
    """Each key of the schema, depth first, and its description."""
    for key, field in schema_at(SCHEMA, path).get("properties", {}).items():
        here = (*path, key)
        yield key, schema_at(SCHEMA, here).get("description") or field["description"]
        yield from described((*here, 0) if key == "models" else here)


def test_config_yml_shows_keys_with_their_descriptions() -> None:
    keys = [each for path in SHOWN for each in schema_at(SCHEMA, path)["properties"].items()]
    known = {(key, field.get("description")) for key, field in keys}
    known |= {("sampling", schema_at(SCHEMA, ("models", 0, "sampling"))["description"])}
    assert set(keys_with_comments()) <= known


def test_config_yml_can_be_read_on_two_screens() -> None:
    assert len(SHIPPED.read_text(encoding="utf-8").splitlines()) <= 75


def test_config_yml_works_as_shipped() -> None:
    config = load_config(SHIPPED)
    assert check_config(config, Plugins()) == []
    [model] = config.models
    assert (model.name, model.backend) == ("enginebay-demo", "hf")
    assert config.model_dump() == Config(models=config.models).model_dump()
    first, *_ = SHIPPED.read_text(encoding="utf-8").splitlines()
    assert first == "# yaml-language-server: $schema=docs/reference/config.schema.json"


def test_config_yml_shows_the_defaults(tmp_path: Path) -> None:
    """With every # before a key taken away it means the same."""
    text = re.sub(r"(?m)^( *)#(?=\w)", r"\1", SHIPPED.read_text(encoding="utf-8"))
    assert "\n  log_level: info\n" in text
    path = tmp_path / "config.yml"
    path.write_text(text, encoding="utf-8")
    assert load_config(path).model_dump() == load_config(SHIPPED).model_dump()


@pytest.mark.wing("cluster", "responses")
def test_the_json_schema_is_current() -> None:
    written = (REPOSITORY / "docs" / "reference" / "config.schema.json").read_text(encoding="utf-8")
    assert json.loads(written) == SCHEMA, (
        "enginebay config schema > docs/reference/config.schema.json"
    )


@pytest.mark.wing("cluster", "responses")
@pytest.mark.parametrize("path", SECTIONS[1:], ids=str)
def test_the_reference_is_current(path: tuple[str | int, ...]) -> None:
    written = (
        (REPOSITORY / "docs" / "reference" / "configuration.md")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    assert [row for row in rows(SCHEMA, *path) if row not in written] == []


def test_the_reference_of_keys_is_current() -> None:
    written = (REPOSITORY / "docs" / "guides" / "keys.md").read_text(encoding="utf-8").splitlines()
    assert [row for row in rows(KeyEntry.model_json_schema()) if row not in written] == []


@pytest.mark.parametrize("options", [HFOptions, LlamaCppOptions])
def test_the_reference_of_options_is_current(options: type[BaseModel]) -> None:
    written = (
        (REPOSITORY / "docs" / "reference" / "configuration.md")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    assert [row for row in rows(options.model_json_schema()) if row not in written] == []


def test_every_key_has_a_description_of_one_line() -> None:
    for key, description in described():
        assert description, key
        assert "\n" not in description
        assert len(description) <= 80
