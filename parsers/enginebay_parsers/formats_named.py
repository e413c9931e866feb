"""Tool-call formats of a name, and behind it a JSON object of arguments."""

from enginebay import ToolFormat
from enginebay_parsers.json.named_calls import Field, NamedCalls
from enginebay_parsers.json.syntax import Layout

NAMED_CALLS: dict[str, ToolFormat] = {
    "mistral": NamedCalls(
        "[TOOL_CALLS]",
        marks=(("[CALL_ID]", Field.ID), ("[ARGS]", Field.ARGUMENTS)),
        id_length=9,
        evidence=r"(?s)^(?=.*\[ARGS\]).*\[TOOL_CALLS\]",
        layout=Layout(
            calls=("$name[ARGS]$arguments", "$name[CALL_ID]$id[ARGS]$arguments"),
        ),
        example=(
            '[TOOL_CALLS]get_weather[CALL_ID]abcdefgh0[ARGS]{"city": "Oslo"}'
            '[TOOL_CALLS]get_weather[CALL_ID]abcdefgh1[ARGS]{"city": "Rome"}'
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
        example=(
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
            '<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|>'
            "<|tool_call_begin|>functions.get_weather:1"
            '<|tool_call_argument_begin|>{"city": "Rome"}<|tool_call_end|>'
            "<|tool_calls_section_end|>"
        ),
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
        example=(
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
            '```json\n{"city": "Oslo"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function'
            '<｜tool▁sep｜>get_weather\n```json\n{"city": "Rome"}\n```<｜tool▁call▁end｜>'
            "<｜tool▁calls▁end｜>"
        ),
    ),
    "deepseek-v3.1": NamedCalls(
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        opening="<｜tool▁calls▁begin｜>",
        closing="<｜tool▁calls▁end｜>",
        marks=(("<｜tool▁sep｜>", Field.ARGUMENTS),),
        layout=Layout(calls=("$name<｜tool▁sep｜>$arguments",)),
        evidence=r"(?s)^(?!.*(```json|<steptml:)).*<｜tool▁sep｜>",
        example=(
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Oslo"}'
            '<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Rome"}'
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
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
        example=(
            "<|tool_calls|><|tool_call:begin|>abcdefgh0<|tool_call:name|>get_weather"
            '<|tool_call:args|>{"city": "Oslo"}<|tool_call:end|>'
            "<|tool_call:begin|>abcdefgh1<|tool_call:name|>get_weather"
            '<|tool_call:args|>{"city": "Rome"}<|tool_call:end|><|calls|>'
        ),
    ),
    "functionary-v3.1": NamedCalls(
        "<function=",
        "</function>",
        marks=((">", Field.ARGUMENTS),),
        layout=Layout(calls=("$name>$arguments",)),
        evidence=r"<function=\w+>\{",
        example=(
            '<function=get_weather>{"city": "Oslo"}</function>'
            '<function=get_weather>{"city": "Rome"}</function>'
        ),
    ),
    "functionary-v3.2": NamedCalls(
        ">>>",
        bare=True,
        marks=(("\n", Field.ARGUMENTS),),
        layout=Layout(calls=("$name\n$arguments",)),
        content_name="all",
        evidence=r">>>all\b|>>>\$\{recipient\}",
        example='get_weather\n{"city": "Oslo"}>>>get_weather\n{"city": "Rome"}',
    ),
    "glm-4": NamedCalls(
        "<|assistant|>",
        bare=True,
        marks=(("\n", Field.ARGUMENTS),),
        layout=Layout(calls=("$name\n$arguments",)),
        evidence=r"(?s)^(?!.*<arg_key>)(?=.*\[gMASK\]).*<\|observation\|>",
        example='get_weather\n{"city": "Oslo"}<|assistant|>get_weather\n{"city": "Rome"}',
    ),
}
