"""Tool-call formats with arguments between tags."""

from enginebay import ToolFormat
from enginebay_parsers.channels.muse import MuseCalls
from enginebay_parsers.xml.element_calls import ElementCalls
from enginebay_parsers.xml.xml_calls import XmlCalls
from enginebay_parsers.xml.xml_grammar import Parameter

_DSML = (
    Parameter('<｜DSML｜parameter name="{key}" string="{string}">', "</｜DSML｜parameter>"),
    Parameter('<｜DSML｜parameter name="{key}">', "</｜DSML｜parameter>"),
)

XML_CALLS: dict[str, ToolFormat] = {
    "qwen3-coder": XmlCalls(
        "<function={name}>",
        "</function>",
        (Parameter("<parameter={key}>", "</parameter>", margin="\n"),),
        block="<tool_call>",
        block_end="</tool_call>",
        may_lack_block=True,
        one_a_block=True,
        evidence=r"(?s)<tool_call>.{0,4}<function=.*<parameter=",
        example=(
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
            "</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n"
            "<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"
        ),
    ),
    "seed": XmlCalls(
        "<function={name}>",
        "</function>",
        (Parameter("<parameter={key}>", "</parameter>"),),
        block="<seed:tool_call>",
        block_end="</seed:tool_call>",
        one_a_block=True,
        evidence="<seed:tool_call>",
        example=(
            "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Oslo</parameter>\n"
            "</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=get_weather>\n"
            "<parameter=city>Rome</parameter>\n</function>\n</seed:tool_call>"
        ),
    ),
    "minimax-m2": XmlCalls(
        '<invoke name="{name}">',
        "</invoke>",
        (Parameter('<parameter name="{key}">', "</parameter>"),),
        block="<minimax:tool_call>",
        block_end="</minimax:tool_call>",
        evidence="<minimax:tool_call>",
        example=(
            '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Oslo'
            '</parameter>\n</invoke>\n<invoke name="get_weather">\n'
            '<parameter name="city">Rome</parameter>\n</invoke>\n</minimax:tool_call>'
        ),
    ),
    "deepseek-v3.2": XmlCalls(
        '<｜DSML｜invoke name="{name}">',
        "</｜DSML｜invoke>",
        _DSML,
        block="<｜DSML｜function_calls>",
        block_end="</｜DSML｜function_calls>",
        evidence="(?s)｜DSML｜.*function_calls>",
        example=(
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
            '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
            '</｜DSML｜invoke>\n<｜DSML｜invoke name="get_weather">\n'
            '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
        ),
    ),
    "deepseek-v4": XmlCalls(
        '<｜DSML｜invoke name="{name}">',
        "</｜DSML｜invoke>",
        _DSML,
        block="<｜DSML｜tool_calls>",
        block_end="</｜DSML｜tool_calls>",
        evidence="(?s)｜DSML｜.*tool_calls>",
        example=(
            '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
            '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
            '</｜DSML｜invoke>\n<｜DSML｜invoke name="get_weather">\n'
            '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
        ),
    ),
    "step3": XmlCalls(
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">',
        "</steptml:invoke><｜tool_call_end｜>",
        (Parameter('<steptml:parameter name="{key}">', "</steptml:parameter>"),),
        block="<｜tool_calls_begin｜>",
        block_end="<｜tool_calls_end｜>",
        evidence="<steptml:",
        example=(
            "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
            '<steptml:invoke name="get_weather">\n<steptml:parameter name="city">Oslo'
            "</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n"
            '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_weather">\n'
            '<steptml:parameter name="city">Rome</steptml:parameter>\n</steptml:invoke>'
            "<｜tool_call_end｜>\n<｜tool_calls_end｜>"
        ),
    ),
    "glm": XmlCalls(
        "<tool_call>{}{name}",
        "</tool_call>",
        (Parameter("<arg_key>{key}</arg_key>{}<arg_value>", "</arg_value>"),),
        spaces=("\n", ""),
        evidence="<arg_key>",
        example=(
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
            "</tool_call>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome"
            "</arg_value>\n</tool_call>"
        ),
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
        example=(
            "<tool_calls:opensource>\n<tool_call:opensource>get_weather"
            "<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n"
            "<arg_value:opensource>Oslo</arg_value:opensource>\n</tool_call:opensource>\n"
            "<tool_call:opensource>get_weather<tool_sep:opensource>\n"
            "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Rome"
            "</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>"
        ),
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
        example=(
            '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
            '<|open|>argument key="city" type="string"<|sep|>Oslo<|close|>argument<|sep|>'
            '<|close|>call<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
            '<|open|>argument key="city" type="string"<|sep|>Rome<|close|>argument<|sep|>'
            "<|close|>call<|sep|><|close|>tools<|sep|>"
        ),
    ),
    "muse": MuseCalls(
        XmlCalls(
            '<atem:invoke name="{name}">',
            "</atem:invoke>",
            (Parameter('<atem:parameter name="{key}">', "</atem:parameter>"),),
            block="<atem:function_calls>",
            block_end="</atem:function_calls>",
            one_a_block=True,
            evidence="<atem:function_calls>",
        ),
        example=(
            " to=get_weather<|message|><atem:function_calls>\n"
            '<atem:invoke name="get_weather">\n<atem:parameter name="city">Oslo'
            "</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|>"
            "<|start|>assistant to=get_weather<|message|><atem:function_calls>\n"
            '<atem:invoke name="get_weather">\n<atem:parameter name="city">Rome'
            "</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>"
        ),
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
        example=(
            '<function name="get_weather"><param name="city">Oslo</param></function>'
            '<function name="get_weather"><param name="city">Rome</param></function>'
        ),
    ),
    "minimax-m3": ElementCalls(
        "]<]minimax[>[",
        example=(
            ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">]'
            "<]minimax[>[<city>Oslo]<]minimax[>[</city>]<]minimax[>[</invoke>\n]"
            '<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>Rome]<]minimax[>['
            "</city>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>"
        ),
    ),
}
