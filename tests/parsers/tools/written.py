"""Calls as the models of each format write them."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.parsers.cutting import Joined

CALL = '{"name": "NAME", "arguments": ARGUMENTS}'
LLAMA = '{"name": "NAME", "parameters": ARGUMENTS}'
COHERE = '{"tool_call_id": "CODE", "tool_name": "NAME", "parameters": ARGUMENTS}'
V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGUMENTS\n```<｜tool▁call▁end｜>"
V31 = "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>"
KIMI = (
    "<|tool_call_begin|>functions.NAME:NUMBER<|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|>"
)
SOLAR = "<|tool_call:begin|>CODE<|tool_call:name|>NAME<|tool_call:args|>ARGUMENTS<|tool_call:end|>"


@dataclass(frozen=True)
class Written:
    """`before`, `call` any number of times with `between` between them, `after`.

    `id`: what the id of a call is that the format writes in a place where it counts.
    `first`: nothing may stand in front.
    """

    before: str
    call: str
    between: str
    after: str
    id: str | None = None
    first: bool = False

    def text(self, *calls: tuple[str, str]) -> str:
        """The text of calls, each a name and arguments."""
        filled = [self._fill(self.call, number, call) for number, call in enumerate(calls)]
        return self.before + self.between.join(filled) + self.after

    def parts(self, *calls: tuple[str, str]) -> Joined:
        """What the text must come out as."""
        ids = [
            () if self.id is None else (self._fill(self.id, number, call),)
            for number, call in enumerate(calls)
        ]
        return [
            ("call", i, *call, *id) for i, (call, id) in enumerate(zip(calls, ids, strict=True))
        ]

    def pieces(self) -> Sequence[str]:
        """Everything a text of this format is made of."""
        marks = (self._fill(self.call, 0, ("\0", "\0"))).split("\0")
        return [text for text in (self.before, *marks, self.between, self.after) if text]

    @staticmethod
    def _fill(text: str, number: int, call: tuple[str, str]) -> str:
        name, arguments = call
        text = text.replace("CODE", f"abcdefgh{number}").replace("NUMBER", str(number))
        return text.replace("NAME", name).replace("ARGUMENTS", arguments)


OBJECTS = {
    "hermes": Written("", f"<tool_call>\n{CALL}\n</tool_call>", "", ""),
    "longcat": Written("", f"<longcat_tool_call>\n{CALL}\n</longcat_tool_call>", "", ""),
    "apriel": Written("<tool_calls>[", CALL[:-1] + ', "id": "CODE"}', ", ", "]</tool_calls>"),
    "jamba": Written("<tool_calls>[\n    ", CALL, ",\n    ", "\n]</tool_calls>"),
    "minimax-m1": Written("<tool_calls>\n", CALL, "\n", "\n</tool_calls>"),
    "nemotron": Written("<TOOLCALL>[", CALL, ", ", "]</TOOLCALL>"),
    "apertus": Written("<|tools_prefix|>[", '{"NAME": ARGUMENTS}', ", ", "]<|tools_suffix|>"),
    "cohere": Written("<|START_ACTION|>[\n    ", COHERE, ",\n    ", "\n]<|END_ACTION|>", id="CODE"),
    "command-r": Written(
        "Action:\n```json\n[\n",
        '    {\n        "tool_name": "NAME",\n        "parameters": ARGUMENTS\n    }',
        ",\n",
        "\n]```",
    ),
    "phi-4-mini": Written("<|tool_call|>[", CALL, ", ", "]<|/tool_call|>"),
    "granite": Written("<|tool_call|>[", CALL, ", ", "]"),
    "granite-20b": Written("", f"<function_call> {CALL}", " ", ""),
    "gigachat3": Written("<|message_sep|>\n\nfunction call<|role_sep|>\n", CALL, "\n", ""),
    "firefunction": Written("functools[", CALL, ", ", "]"),
    "internlm": Written("", f"<|action_start|><|plugin|>\n{LLAMA}<|action_end|>", "", ""),
    "pangu": Written("[unused11][", CALL, ", ", "][unused12]"),
    "mistral-list": Written("[TOOL_CALLS][", CALL[:-1] + ', "id": "CODE"}', ", ", "]"),
    "llama3-json": Written("", LLAMA, "; ", "", first=True),
    "xlam": Written("[", CALL, ", ", "]", first=True),
}

NAMED = {
    "mistral": Written("", "[TOOL_CALLS]NAME[CALL_ID]CODE[ARGS]ARGUMENTS", "", "", id="CODE"),
    "kimi-k2": Written(
        "<|tool_calls_section_begin|>",
        KIMI,
        "",
        "<|tool_calls_section_end|>",
        id="functions.NAME:NUMBER",
    ),
    "deepseek-v3": Written("<｜tool▁calls▁begin｜>", V3, "\n", "<｜tool▁calls▁end｜>"),
    "deepseek-v3.1": Written("<｜tool▁calls▁begin｜>", V31, "", "<｜tool▁calls▁end｜>"),
    "solar": Written("<|tool_calls|>", SOLAR, "", "<|calls|>", id="CODE"),
    "functionary-v3.1": Written("", "<function=NAME>ARGUMENTS</function>", "", ""),
    "functionary-v3.2": Written("", "NAME\nARGUMENTS", ">>>", "", first=True),
    "glm-4": Written("", "NAME\nARGUMENTS", "<|assistant|>", "", first=True),
}

ALL = OBJECTS | NAMED
