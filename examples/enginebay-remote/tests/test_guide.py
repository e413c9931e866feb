"""The configs of the guide and of the README are what the options take."""

import json
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from conftest import serving
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
            for entry in content.get("models", [content]):
                assert Options.model_validate(entry["options"]).servers
                found += 1
    assert found


def test_chat_or_completions(demo: tuple[str, Path], tmp_path: Path) -> None:
    """What a front refuses with each API is what the guide's table says."""
    messages = [{"role": "user", "content": "Hi"}]
    begun = [*messages, {"role": "assistant", "content": "He"}]
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    of_prompts: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"prompt": "Hi"}),
        ("/api/v1/generate", {"prompt": "Hi", "max_length": 1}),
        ("/api/generate", {"prompt": "Hi", "raw": True, "options": {"num_predict": 1}}),
        ("/tokenize", {"prompt": "Hi"}),
        ("/detokenize", {"tokens": [5]}),
        ("/v1/token/encode", {"text": "Hi"}),
        ("/api/extra/tokencount", {"prompt": "Hi"}),
        ("/v1/messages/count_tokens", {"messages": messages}),
        ("/apply-template", {"messages": messages}),
        ("/v1/chat/completions/explain", {"messages": messages}),
        ("/v1/chat/completions", {"messages": begun, "continue_final_message": True}),
    ]
    of_chats: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": messages}),
        ("/v1/messages", {"messages": messages}),
        ("/v1/responses", {"input": "Hi"}),
        ("/api/chat", {"messages": messages, "options": {"num_predict": 1}}),
    ]
    held = [("/v1/chat/completions", {"messages": messages, "response_format": schema})]
    models = [
        {"name": api, "backend": "remote", "path": demo[0], "options": {"api": api}}
        for api in ("chat", "completions")
    ]
    config = json.dumps({"server": {"port": 0}, "models": models})
    with serving(tmp_path, config, {}) as url:
        for asked, statuses in (
            (of_prompts, (400, 200)),
            (of_chats, (200,) * 2),
            (held, (200, 400)),
        ):
            for path, body in asked:
                for model, status in zip(("chat", "completions"), statuses, strict=True):
                    limits = {"max_tokens": 2} if path.startswith("/v1/") else {}
                    if path == "/v1/responses":
                        limits = {"max_output_tokens": 2}
                    found = httpx2.post(
                        url.removesuffix("/v1") + path,
                        json={"model": model, "stream": False, **limits, **body},
                        timeout=60,
                    )
                    assert found.status_code == status, (path, model, found.text)
