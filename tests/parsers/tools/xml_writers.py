"""How models write calls with tagged arguments, as their chat templates render them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.parsers.tools.values import as_text

Value = Callable[[str, object], str]


@dataclass(frozen=True)
class Writer:
    """The texts around a call and its arguments; `space` stands between them."""

    name: str
    block: str
    block_end: str
    call: str
    call_end: str
    parameter: Callable[[str, object], str]
    parameter_end: str
    space: str = "\n"

    def write_call(self, name: str, arguments: Mapping[str, object]) -> str:
        """One call, without what stands around all of them."""
        return self.space.join(
            [
                self.begin(name),
                *(self.parameter(key, value) for key, value in arguments.items()),
                self.call_end,
            ]
        )

    def begin(self, name: str) -> str:
        return self.call.replace("NAME", name)

    def write(self, *calls: tuple[str, Mapping[str, object]]) -> str:
        """All calls of an answer, in one block if there are blocks."""
        each = [self.write_call(name, arguments) for name, arguments in calls]
        if not self.block:
            return self.space.join(each)
        if self.name in ONE_CALL_A_BLOCK:
            return self.space.join(
                f"{self.block}{self.space}{call}{self.space}{self.block_end}" for call in each
            )
        return self.space.join([self.block, *each, self.block_end])


ONE_CALL_A_BLOCK = ("qwen3-coder", "seed", "muse")


def _tagged(start: str, end: str) -> Callable[[str, object], str]:
    return lambda key, value: f"{start.replace('KEY', key)}{as_text(value)}{end}"


def _dsml(key: str, value: object) -> str:
    is_string = "true" if isinstance(value, str) else "false"
    return (
        f'<｜DSML｜parameter name="{key}" string="{is_string}">{as_text(value)}</｜DSML｜parameter>'
    )


def _kimi(key: str, value: object) -> str:
    types = {bool: "boolean", int: "number", float: "number", str: "string", dict: "object"}
    type_name = "null" if value is None else types.get(type(value), "array")
    escaped = key.replace("&", "&amp;").replace('"', "&quot;")
    return (
        f'<|open|>argument key="{escaped}" type="{type_name}"<|sep|>'
        f"{as_text(value)}<|close|>argument<|sep|>"
    )


def _minicpm(key: str, value: object) -> str:
    text = as_text(value)
    if any(char in text for char in "<&\n"):
        text = f"<![CDATA[{text}]]>"
    return f'<param name="{key}">{text}</param>'


def _deepseek(name: str, block: str) -> Writer:
    return Writer(
        name,
        f"<｜DSML｜{block}>",
        f"</｜DSML｜{block}>",
        '<｜DSML｜invoke name="NAME">',
        "</｜DSML｜invoke>",
        _dsml,
        "</｜DSML｜parameter>",
    )


WRITERS = [
    Writer(
        "qwen3-coder",
        "<tool_call>",
        "</tool_call>",
        "<function=NAME>",
        "</function>",
        _tagged("<parameter=KEY>\n", "\n</parameter>"),
        "</parameter>",
    ),
    Writer(
        "seed",
        "<seed:tool_call>",
        "</seed:tool_call>",
        "<function=NAME>",
        "</function>",
        _tagged("<parameter=KEY>", "</parameter>"),
        "</parameter>",
    ),
    Writer(
        "minimax-m2",
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        '<invoke name="NAME">',
        "</invoke>",
        _tagged('<parameter name="KEY">', "</parameter>"),
        "</parameter>",
    ),
    _deepseek("deepseek-v3.2", "function_calls"),
    _deepseek("deepseek-v4", "tool_calls"),
    Writer(
        "step3",
        "<｜tool_calls_begin｜>",
        "<｜tool_calls_end｜>",
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="NAME">',
        "</steptml:invoke><｜tool_call_end｜>",
        _tagged('<steptml:parameter name="KEY">', "</steptml:parameter>"),
        "</steptml:parameter>",
    ),
    Writer(
        "glm",
        "",
        "",
        "<tool_call>NAME",
        "</tool_call>",
        _tagged("<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>"),
        "</arg_value>",
    ),
    Writer(
        "hunyuan",
        "<tool_calls:opensource>",
        "</tool_calls:opensource>",
        "<tool_call:opensource>NAME<tool_sep:opensource>",
        "</tool_call:opensource>",
        _tagged(
            "<arg_key:opensource>KEY</arg_key:opensource>\n<arg_value:opensource>",
            "</arg_value:opensource>",
        ),
        "</arg_value:opensource>",
    ),
    Writer(
        "kimi-k3",
        "<|open|>tools<|sep|>",
        "<|close|>tools<|sep|>",
        '<|open|>call tool="NAME" index="1"<|sep|>',
        "<|close|>call<|sep|>",
        _kimi,
        "<|close|>argument<|sep|>",
        space="",
    ),
    Writer(
        "muse",
        "<atem:function_calls>",
        "</atem:function_calls>",
        '<atem:invoke name="NAME">',
        "</atem:invoke>",
        _tagged('<atem:parameter name="KEY">', "</atem:parameter>"),
        "</atem:parameter>",
    ),
    Writer(
        "minicpm",
        "",
        "",
        '<function name="NAME">',
        "</function>",
        _minicpm,
        "</param>",
        space="",
    ),
]
BY_NAME = {writer.name: writer for writer in WRITERS}
