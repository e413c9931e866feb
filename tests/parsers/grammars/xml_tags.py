"""The tokens that models have for the tags of their calls, and some so that random walks end."""

TAGS = {
    "qwen3-coder": ("<tool_call>", "</tool_call>", "\n</parameter>"),
    "seed": ("<seed:tool_call>", "</seed:tool_call>", "</parameter>"),
    "minimax-m2": ("<minimax:tool_call>", "</minimax:tool_call>", "</parameter>"),
    "deepseek-v3.2": ("｜DSML｜", "<｜DSML｜function_calls>", "</｜DSML｜parameter>"),
    "deepseek-v4": ("｜DSML｜", "<｜DSML｜tool_calls>", "</｜DSML｜parameter>"),
    "step3": (
        "<｜tool_calls_begin｜>",
        "<｜tool_call_begin｜>",
        "<｜tool_sep｜>",
        "<｜tool_call_end｜>",
        "<｜tool_calls_end｜>",
        "</steptml:parameter>",
    ),
    "glm": (
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ),
    "hunyuan": (
        "<tool_calls:opensource>",
        "</tool_calls:opensource>",
        "<tool_call:opensource>",
        "</tool_call:opensource>",
        "<tool_sep:opensource>",
        "<arg_key:opensource>",
        "</arg_key:opensource>",
        "<arg_value:opensource>",
        "</arg_value:opensource>",
    ),
    "kimi-k3": ("<|open|>", "<|close|>", "<|sep|>", "<|close|>argument<|sep|>"),
    "muse": ("<atem:function_calls>", "</atem:parameter>"),
    "minicpm": ("<function", "</function>", "<param", "</param>"),
}
