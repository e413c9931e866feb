"""Tool-call formats whose arguments stand between tags, or as Python writes them."""

from enginebay import ToolFormat
from parsers.element_calls import ElementCalls
from parsers.literal_calls import LiteralCalls
from parsers.literal_scanner import Quote
from parsers.xml_calls import XmlCalls
from parsers.xml_syntax import Parameter

_DSML = (
    Parameter('<｜DSML｜parameter name="{key}" string="{string}">', "</｜DSML｜parameter>"),
    Parameter('<｜DSML｜parameter name="{key}">', "</｜DSML｜parameter>"),
)

TAGGED_ARGUMENTS: dict[str, ToolFormat] = {
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
        _DSML,
        block="<｜DSML｜function_calls>",
        block_end="</｜DSML｜function_calls>",
        evidence="(?s)｜DSML｜.*function_calls>",
    ),
    "deepseek-v4": XmlCalls(
        '<｜DSML｜invoke name="{name}">',
        "</｜DSML｜invoke>",
        _DSML,
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
}
