"""The config in effect, as YAML."""

from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from enginebay.config.origins import Origins
from enginebay.config.problems import KeyPath, is_secret
from enginebay.config.schema import Config

MASK = "**********"


def as_yaml(config: Config) -> str:
    """Every effective value, including defaults; keys masked, overrides with their origin."""
    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = StringIO()
    data = config.model_dump(mode="json", exclude_none=True)
    yaml.dump(_commented(data, (), config.origins), text)
    return text.getvalue()


def _commented(value: Any, path: KeyPath, origins: Origins) -> Any:
    if isinstance(value, list):
        return [_commented(item, (*path, index), origins) for index, item in enumerate(value)]
    if isinstance(value, dict):
        mapping = CommentedMap()
        for key, inner in value.items():
            at = (*path, key)
            mapping[key] = _commented(inner, at, origins)
            if at in origins.overrides:
                mapping.yaml_add_eol_comment(origins.overrides[at], key)
        return mapping
    return MASK if value is not None and is_secret(path) else value
