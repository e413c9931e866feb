"""Tool-call formats whose arguments are JSON."""

from enginebay import ToolFormat
from parsers.json_calls import JsonCalls
from parsers.layout import Layout
from parsers.named_call import Field
from parsers.named_calls import NamedCalls

_LINES = Layout("\n", tail="\n", gap="\n")
_LIST = Layout("[", ", ", "]")

JSON_CALLS: dict[str, ToolFormat] = {
    # JSON objects between tags.
    "hermes": JsonCalls(
        "<tool_call>",
        "</tool_call>",
        evidence=r'<tool_call>[^<]{0,80}\{[^<]{0,20}"name\\?"',
        layout=_LINES,
    ),
    "longcat": JsonCalls(
        "<longcat_tool_call>",
        "</longcat_tool_call>",
        evidence=r'<longcat_tool_call>[^<]*"name\\?"',
        layout=_LINES,
    ),
    "apriel": JsonCalls(
        "<tool_calls>",
        "</tool_calls>",
        id_keys=("id",),
        evidence=r'(?s)<tool_calls>\[.*"id": ',
        layout=_LIST,
    ),
    "jamba": JsonCalls(
        "<tool_calls>",
        "</tool_calls>",
        evidence=r"<tool_calls>(\\n|\s)*\[",
        layout=Layout("[\n    ", ",\n    ", "\n]"),
    ),
    "minimax-m1": JsonCalls(
        "<tool_calls>",
        "</tool_calls>",
        evidence=r"<tool_calls>(\\n|\s)*\{",
        layout=Layout("\n", "\n", "\n"),
    ),
    "nemotron": JsonCalls("<TOOLCALL>", "</TOOLCALL>", layout=_LIST),
    "apertus": JsonCalls("<|tools_prefix|>", "<|tools_suffix|>", name_keys=(), layout=_LIST),
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
    ),
    "command-r": JsonCalls(
        "Action:\n```json",
        fenced=True,
        also=("Action: ```json", "Action:```json"),
        name_keys=("tool_name",),
        argument_keys=("parameters",),
        evidence=r"Action:(\\n|\s)*```json",
        layout=Layout(
            "\n[\n    ",
            ",\n    ",
            "\n]```",
            calls=('{\n        "tool_name": "$name",\n        "parameters": $arguments\n    }',),
        ),
    ),
    "phi-4-mini": JsonCalls(
        "<|tool_call|>",
        "<|/tool_call|>",
        also=("functools[",),
        evidence=r"<\|/tool(_call)?\|>",
        layout=_LIST,
    ),
    "granite": JsonCalls(
        "<|tool_call|>", also=("<tool_call>",), evidence=r"<\|tool_call\|>", layout=_LIST
    ),
    "granite-20b": JsonCalls("<function_call>", layout=Layout(" ", gap=" ")),
    "gigachat3": JsonCalls(
        "function call<|role_sep|>",
        also=("<|function_call|>",),
        opening="<|message_sep|>",
        evidence=r"(?s)^(?=.*<\|role_sep\|>).*function[ _]call",
        layout=Layout("\n", gap="\n\n"),
    ),
    "firefunction": JsonCalls("functools[", layout=_LIST),
    "internlm": JsonCalls(
        "<|action_start|><|plugin|>",
        "<|action_end|>",
        layout=Layout("\n", calls=('{"name": "$name", "parameters": $arguments}',)),
    ),
    "pangu": JsonCalls("[unused11]", "[unused12]", layout=_LIST),
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
    ),
    # JSON objects that may stand without a tag where the answer begins.
    "llama3-json": JsonCalls(
        "<|python_tag|>",
        bare=True,
        name_keys=("name", "function"),
        evidence=r'\{\\?"name\\?": function name, \\?"parameters\\?"',
        layout=Layout(between="; ", calls=('{"name": "$name", "parameters": $arguments}',)),
    ),
    "xlam": JsonCalls("", bare=True, evidence="calls in a single JSON array", layout=_LIST),
    # JSON objects behind a name.
    "mistral": NamedCalls(
        "[TOOL_CALLS]",
        marks=(("[CALL_ID]", Field.ID), ("[ARGS]", Field.ARGUMENTS)),
        id_length=9,
        evidence=r"(?s)^(?=.*\[ARGS\]).*\[TOOL_CALLS\]",
        layout=Layout(
            calls=("$name[ARGS]$arguments", "$name[CALL_ID]$id[ARGS]$arguments"),
        ),
    ),
    "kimi-k2": NamedCalls(
        "<|tool_call_begin|>",
        "<|tool_call_end|>",
        opening="<|tool_calls_section_begin|>",
        closing="<|tool_calls_section_end|>",
        first=Field.ID_WITH_NAME,
        marks=(("<|tool_call_argument_begin|>", Field.ARGUMENTS),),
        layout=Layout(calls=("functions.$name:$number<|tool_call_argument_begin|>$arguments",)),
    ),
    "deepseek-v3": NamedCalls(
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        opening="<｜tool▁calls▁begin｜>",
        closing="<｜tool▁calls▁end｜>",
        first=Field.KIND,
        marks=(("<｜tool▁sep｜>", Field.NAME), ("\n", Field.ARGUMENTS)),
        fence="```json",
        layout=Layout(gap="\n", calls=("function<｜tool▁sep｜>$name\n```json\n$arguments\n```",)),
        evidence=r"(?s)^(?=.*```json).*<｜tool▁sep｜>",
    ),
    "deepseek-v3.1": NamedCalls(
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        opening="<｜tool▁calls▁begin｜>",
        closing="<｜tool▁calls▁end｜>",
        marks=(("<｜tool▁sep｜>", Field.ARGUMENTS),),
        layout=Layout(calls=("$name<｜tool▁sep｜>$arguments",)),
        evidence=r"(?s)^(?!.*(```json|<steptml:)).*<｜tool▁sep｜>",
    ),
    "solar": NamedCalls(
        "<|tool_call:begin|>",
        "<|tool_call:end|>",
        opening="<|tool_calls|>",
        closing="<|calls|>",
        first=Field.ID,
        marks=(("<|tool_call:name|>", Field.NAME), ("<|tool_call:args|>", Field.ARGUMENTS)),
        layout=Layout(
            calls=("$id<|tool_call:name|>$name<|tool_call:args|>$arguments",),
            header="<|begin|>assistant",
        ),
    ),
    "functionary-v3.1": NamedCalls(
        "<function=",
        "</function>",
        marks=((">", Field.ARGUMENTS),),
        layout=Layout(calls=("$name>$arguments",)),
        evidence=r"<function=\w+>\{",
    ),
    "functionary-v3.2": NamedCalls(
        ">>>",
        bare=True,
        marks=(("\n", Field.ARGUMENTS),),
        layout=Layout(calls=("$name\n$arguments",)),
        content_name="all",
        evidence=r">>>all\b|>>>\$\{recipient\}",
    ),
    "glm-4": NamedCalls(
        "<|assistant|>",
        bare=True,
        marks=(("\n", Field.ARGUMENTS),),
        layout=Layout(calls=("$name\n$arguments",)),
        evidence=r"(?s)^(?!.*<arg_key>)(?=.*\[gMASK\]).*<\|observation\|>",
    ),
}
