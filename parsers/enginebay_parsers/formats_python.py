"""Tool-call formats with Python syntax."""

from enginebay import ToolFormat
from enginebay_parsers.python.literal_calls import LiteralCalls
from enginebay_parsers.stream.literal_words import Quote

PYTHON_CALLS: dict[str, ToolFormat] = {
    "lfm2": LiteralCalls(
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        evidence=r"<\|tool_call_start\|>|<\|tool_list_start\|>|List of tools: \[",
        example=(
            '<|tool_call_start|>[get_weather(city="Oslo"), get_weather(city="Rome")]'
            "<|tool_call_end|>"
        ),
    ),
    "olmo3": LiteralCalls(
        "<function_calls>",
        "</function_calls>",
        list_start="",
        between="\n",
        list_end="",
        evidence="<function_calls>",
        example=(
            '<function_calls>get_weather(city="Oslo")\nget_weather(city="Rome")</function_calls>'
        ),
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
        example=(
            '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>}<tool_call|>'
            '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>}<tool_call|>'
        ),
    ),
    "pythonic": LiteralCalls(
        "<|python_start|>",
        "<|python_end|>",
        may_be_bare=True,
        evidence=r"\[func_name1\(|<\|python_start\|>",
        example="[get_weather(city='Oslo'), get_weather(city='Rome')]",
    ),
}
