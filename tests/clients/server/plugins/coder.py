"""A model that does one thing with each request, if the tools of Codex are offered."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from enginebay import BackendRegister, BackendSettings, EngineBackend, hookimpl
from enginebay.testing import ScriptedEngine

CHAT_TEMPLATE = Path(__file__).parents[4] / "demo" / "chat_template.jinja"
PATCH = """\
apply_patch <<'EOF'
*** Begin Patch
*** Update File: notes.txt
@@
 first line
+second line
*** End Patch
EOF"""


def work(prompt: str, index: int) -> Iterator[str]:
    """A patch for `notes.txt`, or `close_agent`, and then what came of it."""
    asked = prompt.rpartition("<|im_start|>user")[2].removesuffix("<|im_start|>assistant\n")
    if "<tool_response>" in asked:
        result = asked.partition("<tool_response>")[2].partition("</tool_response>")[0]
        yield from ("<think>\n", "What came of it?", "\n</think>\n\n")
        yield f"It is done: {' '.join(result.split())[:500]}"
        return
    yield from ("<think>\n", "I call a tool.", "\n</think>\n\n")
    if "close" in asked:
        yield call("close_agent", target="nobody")
    else:
        yield call("exec_command", cmd=PATCH)


def call(name: str, **arguments: Any) -> str:
    """As the demo model's template has it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@hookimpl
def register_backends(register: BackendRegister) -> None:
    def create(settings: BackendSettings) -> EngineBackend:
        template = CHAT_TEMPLATE.read_text(encoding="utf-8")
        return EngineBackend(
            lambda: ScriptedEngine(work, context_length=200_000, chat_template=template)
        )

    register("coder", create)
