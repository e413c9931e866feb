"""Ollama's API over a real model."""

import json
from typing import Any

from tests.apis.ollama_support import CHAT, GENERATE, answered, lines, refused, user
from tests.support import Server

MODEL = "enginebay-demo"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def test_the_demo_model(demo: Server) -> None:
    # OLL-1 OLL-4 OLL-7 OLL-10 OLL-13
    greedy: dict[str, Any] = {"options": {"temperature": 0, "num_predict": 40}}
    asked = user("What is 2 + 3?")
    body = {"model": MODEL, "messages": asked, **greedy}
    streamed = lines(demo.http.post(CHAT, json=body))
    whole = answered(demo.http.post(CHAT, json={**body, "stream": False}))
    said = "".join(line["message"]["content"] for line in streamed)
    assert said == whole["message"]["content"] != ""
    fields = {"temperature": 0, "max_tokens": 40}
    same = demo.openai.chat.completions.create(model=MODEL, messages=asked, **fields)  # type: ignore[call-overload]
    assert same.choices[0].message.content == said
    assert same.usage.prompt_tokens == whole["prompt_eval_count"]
    form = answered(demo.http.post(CHAT, json={**body, "stream": False, "format": SCHEMA}))
    assert json.loads(form["message"]["content"])["city"] in ("Oslo", "Rome")
    raw = {"model": MODEL, "prompt": "Once", "raw": True, "stream": False, **greedy}
    text = demo.openai.completions.create(model=MODEL, prompt="Once", **fields)  # type: ignore[call-overload]
    assert answered(demo.http.post(GENERATE, json=raw))["response"] == text.choices[0].text
    shown = demo.http.post("/api/show", json={"model": MODEL}).json()
    assert (
        {"completion", "vision"}
        <= set(shown["capabilities"])
        <= {*("completion", "tools", "thinking", "vision")}
    )
    assert shown["details"]["family"] == "llava"
    assert "suffix" in refused(demo.http.post(GENERATE, json={**raw, "suffix": "x"}))
    before = {"model": MODEL, "messages": asked, "options": {"num_ctx": 3, "seed": 1}}
    assert "x-unsupported-params" not in demo.http.post(CHAT, json=before).headers
