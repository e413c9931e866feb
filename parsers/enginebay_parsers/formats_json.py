"""Tool-call formats of JSON objects that have the name and the arguments, and Harmony."""

from enginebay import ToolFormat
from enginebay_parsers.channels.harmony import HarmonyCalls
from enginebay_parsers.json.object_calls import JsonCalls
from enginebay_parsers.json.syntax import Layout

_LINES = Layout("\n", tail="\n", gap="\n")
_LIST = Layout("[", ", ", "]")

JSON_CALLS: dict[str, ToolFormat] = {
    "harmony": HarmonyCalls(
        example=(
            "<|channel|>commentary to=functions.get_weather <|constrain|>json"
            '<|message|>{"city": "Oslo"}<|call|><|start|>assistant'
            "<|channel|>commentary to=functions.get_weather <|constrain|>json"
            '<|message|>{"city": "Rome"}<|call|>'
        )
    ),
    # JSON objects between tags.
    "hermes": JsonCalls(
        "<tool_call>",
        "</tool_call>",
        evidence=r'<tool_call>[^<]{0,80}\{[^<]{0,20}"name\\?"',
        layout=_LINES,
        example=(
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n'
            "</tool_call><tool_call>\n"
            '{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
        ),
    ),
    "longcat": JsonCalls(
        "<longcat_tool_call>",
        "</longcat_tool_call>",
        evidence=r'<longcat_tool_call>[^<]*"name\\?"',
        layout=_LINES,
        example=(
            '<longcat_tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n'
            "</longcat_tool_call><longcat_tool_call>\n"
            '{"name": "get_weather", "arguments": {"city": "Rome"}}\n</longcat_tool_call>'
        ),
    ),
    "apriel": JsonCalls(
        "<tool_calls>",
        "</tool_calls>",
        id_keys=("id",),
        evidence=r'(?s)<tool_calls>\[.*"id": ',
        layout=_LIST,
        example=(
            '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "abcdefgh0"}'
            ', {"name": "get_weather", "arguments": {"city": "Rome"}, "id": "abcdefgh1"}]'
            "</tool_calls>"
        ),
    ),
    "jamba": JsonCalls(
        "<tool_calls>",
        "</tool_calls>",
        evidence=r"<tool_calls>(\\n|\s)*\[",
        layout=Layout("[\n    ", ",\n    ", "\n]"),
        example=(
            '<tool_calls>[\n    {"name": "get_weather", "arguments": {"city": "Oslo"}},\n'
            '    {"name": "get_weather", "arguments": {"city": "Rome"}}\n]</tool_calls>'
        ),
    ),
    "minimax-m1": JsonCalls(
        "<tool_calls>",
        "</tool_calls>",
        evidence=r"<tool_calls>(\\n|\s)*\{",
        layout=Layout("\n", "\n", "\n"),
        example=(
            '<tool_calls>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n'
            '{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_calls>'
        ),
    ),
    "nemotron": JsonCalls(
        "<TOOLCALL>",
        "</TOOLCALL>",
        layout=_LIST,
        example=(
            '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Oslo"}}, '
            '{"name": "get_weather", "arguments": {"city": "Rome"}}]</TOOLCALL>'
        ),
    ),
    "apertus": JsonCalls(
        "<|tools_prefix|>",
        "<|tools_suffix|>",
        name_keys=(),
        layout=_LIST,
        example=(
            '<|tools_prefix|>[{"get_weather": {"city": "Oslo"}}, '
            '{"get_weather": {"city": "Rome"}}]<|tools_suffix|>'
        ),
    ),
    "cohere": JsonCalls(
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        name_keys=("tool_name",),
        argument_keys=("parameters",),
        id_keys=("tool_call_id",),
        layout=Layout(
            "[\n    ",
            ",\n    ",
            "\n]",
            calls=(
                '{"tool_call_id": "$number", "tool_name": "$name", "parameters": $arguments}',
                '{"tool_name": "$name", "parameters": $arguments}',
            ),
        ),
        example=(
            "<|START_ACTION|>[\n"
            '    {"tool_call_id": "abcdefgh0", "tool_name": "get_weather",'
            ' "parameters": {"city": "Oslo"}},\n'
            '    {"tool_call_id": "abcdefgh1", "tool_name": "get_weather",'
            ' "parameters": {"city": "Rome"}}\n'
            "]<|END_ACTION|>"
        ),
    ),
    "command-r": JsonCalls(
        "Action:\n```json",
        fence="```json",
        also=("Action: ```json", "Action:```json"),
        dropped=("<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        name_keys=("tool_name",),
        argument_keys=("parameters",),
        evidence=r"Action:(\\n|\s)*```json",
        layout=Layout(
            "\n[\n    ",
            ",\n    ",
            "\n]```",
            calls=('{\n        "tool_name": "$name",\n        "parameters": $arguments\n    }',),
        ),
        example=(
            'Action:\n```json\n[\n    {\n        "tool_name": "get_weather",\n'
            '        "parameters": {"city": "Oslo"}\n    },\n    {\n'
            '        "tool_name": "get_weather",\n        "parameters": {"city": "Rome"}\n'
            "    }\n]```"
        ),
    ),
    "phi-4-mini": JsonCalls(
        "<|tool_call|>",
        "<|/tool_call|>",
        also=("functools[",),
        evidence=r"<\|/tool(_call)?\|>",
        layout=_LIST,
        example=(
            '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}, '
            '{"name": "get_weather", "arguments": {"city": "Rome"}}]<|/tool_call|>'
        ),
    ),
    "granite": JsonCalls(
        "<|tool_call|>",
        also=("<tool_call>",),
        evidence=r"<\|tool_call\|>",
        layout=_LIST,
        example=(
            '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}, '
            '{"name": "get_weather", "arguments": {"city": "Rome"}}]'
        ),
    ),
    "granite-20b": JsonCalls(
        "<function_call>",
        layout=Layout(" ", gap=" "),
        example=(
            '<function_call> {"name": "get_weather", "arguments": {"city": "Oslo"}} '
            '<function_call> {"name": "get_weather", "arguments": {"city": "Rome"}}'
        ),
    ),
    "gigachat3": JsonCalls(
        "function call<|role_sep|>",
        also=("<|function_call|>",),
        opening="<|message_sep|>",
        evidence=r"(?s)^(?=.*<\|role_sep\|>).*function[ _]call",
        layout=Layout("\n", gap="\n\n"),
        example=(
            "<|message_sep|>\n\nfunction call<|role_sep|>\n"
            '{"name": "get_weather", "arguments": {"city": "Oslo"}}\n'
            '{"name": "get_weather", "arguments": {"city": "Rome"}}'
        ),
    ),
    "firefunction": JsonCalls(
        "functools[",
        layout=_LIST,
        example=(
            'functools[{"name": "get_weather", "arguments": {"city": "Oslo"}}, '
            '{"name": "get_weather", "arguments": {"city": "Rome"}}]'
        ),
    ),
    "internlm": JsonCalls(
        "<|action_start|><|plugin|>",
        "<|action_end|>",
        layout=Layout("\n", calls=('{"name": "$name", "parameters": $arguments}',)),
        example=(
            "<|action_start|><|plugin|>\n"
            '{"name": "get_weather", "parameters": {"city": "Oslo"}}<|action_end|>'
            "<|action_start|><|plugin|>\n"
            '{"name": "get_weather", "parameters": {"city": "Rome"}}<|action_end|>'
        ),
    ),
    "pangu": JsonCalls(
        "[unused11]",
        "[unused12]",
        layout=_LIST,
        example=(
            '[unused11][{"name": "get_weather", "arguments": {"city": "Oslo"}}, '
            '{"name": "get_weather", "arguments": {"city": "Rome"}}][unused12]'
        ),
    ),
    "mistral-list": JsonCalls(
        "[TOOL_CALLS]",
        id_keys=("id",),
        id_length=9,
        evidence=r"(?s)^(?!.*\[ARGS\]).*\[TOOL_CALLS\]",
        layout=Layout(
            "[",
            ", ",
            "]",
            calls=(
                '{"name": "$name", "arguments": $arguments}',
                '{"name": "$name", "arguments": $arguments, "id": "$id"}',
            ),
        ),
        example=(
            '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "abcdefgh0"}'
            ', {"name": "get_weather", "arguments": {"city": "Rome"}, "id": "abcdefgh1"}]'
        ),
    ),
    # JSON objects that may stand without a tag where the answer begins.
    "llama3-json": JsonCalls(
        "<|python_tag|>",
        bare=True,
        name_keys=("name", "function"),
        evidence=r'\{\\?"name\\?": function name, \\?"parameters\\?"',
        layout=Layout(between="; ", calls=('{"name": "$name", "parameters": $arguments}',)),
        example=(
            '{"name": "get_weather", "parameters": {"city": "Oslo"}}; '
            '{"name": "get_weather", "parameters": {"city": "Rome"}}'
        ),
    ),
    "xlam": JsonCalls(
        "",
        bare=True,
        evidence="calls in a single JSON array",
        layout=_LIST,
        example=(
            '[{"name": "get_weather", "arguments": {"city": "Oslo"}}, '
            '{"name": "get_weather", "arguments": {"city": "Rome"}}]'
        ),
    ),
}
