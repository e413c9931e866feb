"""What chat templates write for calls with JSON arguments is read back as the same calls.

That is what models learn to write. The templates are those that llama.cpp ships.
"""

import json
import re
from collections.abc import Sequence
from itertools import product

import pytest

from enginebay.models.template.features import CALL_TOOL, TemplateFeatures
from enginebay.models.template.template import ChatTemplate
from enginebay_parsers import TOOLS
from enginebay_parsers.json.base import JsonFormat
from tests.llama_templates import llama_templates
from tests.parsers.cutting import calls_of, run

Calls = Sequence[tuple[str, dict[str, object]]]
ARGUMENTS: dict[str, object] = {
    "code": "def f(a):\n\treturn a < 1 and \"x\" > 'y'  # \\n & `b` </tool_call>\n",
    "zip": "02134",
    "place": {"city": "Zürich 🙂", "tags": ["a", "b 'c'"], "deep": [{"x": [1, [2.5, None]]}]},
}
CALLS: Calls = [("f", ARGUMENTS), ("g", {}), ("f", {"count": 12, "really": True})]
TEMPLATES = {
    template: name
    for template, source in llama_templates().items()
    for name in [next((name for name in TOOLS if TOOLS[name].matches(source)), "")]
    if isinstance(TOOLS.get(name), JsonFormat) and "granite-3.3" not in template
}


def rendered(source: str, calls: Calls) -> str | None:
    """What the assistant says in the template; None if it takes no such calls."""
    features = TemplateFeatures(ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}))
    asked = [features.says("user", "Hi.")]
    for tools, as_text, content in product(([CALL_TOOL], None), (False, True), ("", None)):
        written = [
            {
                "id": f"abcdefgh{number}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": json.dumps(arguments) if as_text else arguments,
                },
            }
            for number, (name, arguments) in enumerate(calls)
        ]
        answer = {"role": "assistant", "content": content, "tool_calls": written}
        before = features.render(asked, tools=tools)
        after = features.render([*asked, answer], tools=tools, add_generation_prompt=False)
        if before and after and "02134" in after:
            said = re.sub(r"^.*Hi\.", "", after, flags=re.DOTALL)
            return said.removeprefix(before.partition("Hi.")[2])
    return None


@pytest.mark.skipif(not TEMPLATES, reason="needs the source package of llama-cpp-python")
@pytest.mark.parametrize("template", TEMPLATES)
def test_calls_come_back(template: str) -> None:
    # TAB-50, TAB-54
    source, form = llama_templates()[template], TOOLS[TEMPLATES[template]]
    for calls in (CALLS, CALLS[:1]):
        text = rendered(source, calls)
        if text is not None:
            break
    if text is None:
        assert ".append(" in source  # refused by the sandbox, as transformers refuses it
        return
    for way in ([text], text):
        found = calls_of(run(form.parser, way))
        back = [(called[1], json.loads(str(called[2]))) for called in found]
        if TEMPLATES[template] == "gigachat3":  # writes only the first
            calls = calls[:1]
        assert back == list(calls), text
        ids = [called[3] for called in found if len(called) == 4]
        assert ids in ([], [f"abcdefgh{n}" for n in range(len(calls))]) or len(set(ids)) == len(ids)


def test_enough_templates() -> None:
    assert not llama_templates() or len(TEMPLATES) >= 30
