"""The configs of the guide and of the README are what the options take."""

import re
from pathlib import Path

import pytest
from enginebay_remote.options import Options
from ruamel.yaml import YAML

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "several-servers.md"
README = Path(__file__).parents[1] / "README.md"


@pytest.mark.parametrize("page", [GUIDE, README], ids=lambda page: page.name)
def test_configs(page: Path) -> None:
    """Each with `servers`, whole or in part."""
    if not page.is_file():
        pytest.skip("the guide is part of Enginebay's repository")
    found = 0
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        if "servers:" in block:
            content = YAML(typ="safe").load(block)
            [entry] = content.get("models", [content])
            assert Options.model_validate(entry["options"]).servers
            found += 1
    assert found
