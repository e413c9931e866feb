"""The built-in tool-call formats: a few families, described in a line each."""

from enginebay import ToolFormat
from parsers import harmony
from parsers.element_calls import ElementCalls
from parsers.json_calls import JsonCalls
from parsers.layout import Layout
from parsers.literal_calls import LiteralCalls
from parsers.literal_scanner import Quote
from parsers.named_call import Field
from parsers.named_calls import NamedCalls
from parsers.xml_calls import Parameter, XmlCalls

_LINES = Layout("\n", tail="\n", gap="\n")
_LIST = Layout("[", ", ", "]")

TOOLS: dict[str, ToolFormat] = {
    "harmony": harmony.HarmonyCalls(),
    # Arguments between tags.
    "qwen3-coder": XmlCalls(
        "<function={name}>",
        "</function>",
        (Parameter("<parameter={key}>", "</parameter>", margin="\n"),),
        block="<tool_call>",
        block_end="</tool_call>",
        may_lack_block=True,
        one_a_block=True,
        evidence=r"(?s)<tool_call>.{0,4}<function=.*<parameter=",
    ),
    "seed": XmlCalls(
        "<function={name}>",
        "</function>",
        (Parameter("<parameter={key}>", "</parameter>"),),
        block="<seed:tool_call>",
        block_end="</seed:tool_call>",
        one_a_block=True,
        evidence="<seed:tool_call>",
    ),
    "minimax-m2": XmlCalls(
        '<invoke name="{name}">',
        "</invoke>",
        (Parameter('<parameter name="{key}">', "</parameter>"),),
        block="<minimax:tool_call>",
        block_end="</minimax:tool_call>",
        evidence="<minimax:tool_call>",
    ),
    "deepseek-v3.2": XmlCalls(
        '<｜DSML｜invoke name="{name}">',
        "</｜DSML｜invoke>",
        (
            Parameter('<｜DSML｜parameter name="{key}" string="{string}">', "</｜DSML｜parameter>"),
            Parameter('<｜DSML｜parameter name="{key}">', "</｜DSML｜parameter>"),
        ),
        block="<｜DSML｜function_calls>",
        block_end="</｜DSML｜function_calls>",
        evidence="(?s)｜DSML｜.*function_calls>",
    ),
    "deepseek-v4": XmlCalls(
        '<｜DSML｜invoke name="{name}">',
        "</｜DSML｜invoke>",
        (
            Parameter('<｜DSML｜parameter name="{key}" string="{string}">', "</｜DSML｜parameter>"),
            Parameter('<｜DSML｜parameter name="{key}">', "</｜DSML｜parameter>"),
        ),
        block="<｜DSML｜tool_calls>",
        block_end="</｜DSML｜tool_calls>",
        evidence="(?s)｜DSML｜.*tool_calls>",
    ),
    "step3": XmlCalls(
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">',
        "</steptml:invoke><｜tool_call_end｜>",
        (Parameter('<steptml:parameter name="{key}">', "</steptml:parameter>"),),
        block="<｜tool_calls_begin｜>",
        block_end="<｜tool_calls_end｜>",
        evidence="<steptml:",
    ),
    "glm": XmlCalls(
        "<tool_call>{}{name}",
        "</tool_call>",
        (Parameter("<arg_key>{key}</arg_key>{}<arg_value>", "</arg_value>"),),
        spaces=("\n", ""),
        evidence="<arg_key>",
    ),
    "hunyuan": XmlCalls(
        "<tool_call:opensource>{}{name}{}<tool_sep:opensource>",
        "</tool_call:opensource>",
        (
            Parameter(
                "<arg_key:opensource>{key}</arg_key:opensource>{}<arg_value:opensource>",
                "</arg_value:opensource>",
            ),
        ),
        block="<tool_calls:opensource>",
        block_end="</tool_calls:opensource>",
        evidence=r"<arg_key(\{\}|:opensource)>",
    ),
    "kimi-k3": XmlCalls(
        '<|open|>call tool="{name}" index="{index}"<|sep|>',
        "<|close|>call<|sep|>",
        (
            Parameter(
                '<|open|>argument key="{key}" type="{string}"<|sep|>', "<|close|>argument<|sep|>"
            ),
            Parameter('<|open|>json type="object"<|sep|>', "<|close|>json<|sep|>"),
        ),
        block="<|open|>tools<|sep|>",
        block_end="<|close|>tools<|sep|>",
        entities=True,
        spaces=("",),
        names_types=True,
        evidence=r"open_tag\('call'|<\|open\|>call",
    ),
    "muse": XmlCalls(
        '<atem:invoke name="{name}">',
        "</atem:invoke>",
        (Parameter('<atem:parameter name="{key}">', "</atem:parameter>"),),
        block="<atem:function_calls>",
        block_end="</atem:function_calls>",
        one_a_block=True,
        evidence="<atem:function_calls>",
    ),
    "minicpm": XmlCalls(
        '<function name="{name}">',
        "</function>",
        (
            Parameter('<param name="{key}"><![CDATA[', "]]></param>"),
            Parameter('<param name="{key}">', "</param>"),
        ),
        spaces=("",),
        evidence="(?s)<function name=.*<param name=",
    ),
    "minimax-m3": ElementCalls("]<]minimax[>["),
    # Calls in the manner of Python.
    "lfm2": LiteralCalls(
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        evidence=r"<\|tool_call_start\|>|<\|tool_list_start\|>|List of tools: \[",
    ),
    "olmo3": LiteralCalls(
        "<function_calls>",
        "</function_calls>",
        list_start="",
        between="\n",
        list_end="",
        evidence="<function_calls>",
    ),
    "gemma": LiteralCalls(
        "<|tool_call>",
        "<tool_call|>",
        call="call:{function}{",
        closer="}",
        separator=":",
        quotes=(Quote('<|"|>', escapes=False),),
        list_start="",
        list_end="",
        one_a_block=True,
        evidence=r"<\|tool_call>call:",
    ),
    "pythonic": LiteralCalls(
        "<|python_start|>",
        "<|python_end|>",
        may_be_bare=True,
        evidence=r"\[func_name1\(|<\|python_start\|>",
    ),
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
