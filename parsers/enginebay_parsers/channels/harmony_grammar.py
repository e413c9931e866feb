"""The grammar of calls in Harmony."""

from collections.abc import Mapping

from enginebay import (
    CallGrammar,
    Case,
    Grammar,
    Pattern,
    Repeat,
    Text,
    choice,
    optional,
    sequence,
)

_ASSISTANT = "<|start|>assistant"
# How a message begins that is no call.
_HEADER = sequence(
    choice("analysis", "commentary", sequence("final", optional(" <|constrain|>json"))),
    "<|message|>",
)


def harmony_grammar(arguments: Mapping[str, Grammar], *, parallel: bool) -> CallGrammar:
    """Calls with the recipient in the role or in the channel, the type of the content named.

    A prompt ends with the role, so the first message may begin after it.
    """
    bodies = {name: sequence("<|message|>", each, "<|call|>") for name, each in arguments.items()}
    to = choice(
        *(
            sequence(
                f"functions.{name}<|channel|>commentary ",
                choice("json", "<|constrain|>json"),
                body,
            )
            for name, body in bodies.items()
        )
    )
    channel = choice(
        *(
            sequence(f"commentary to=functions.{name} <|constrain|>json", body)
            for name, body in bodies.items()
        )
    )
    call = choice(sequence(" to=", to), sequence("<|channel|>", channel))
    more = Repeat(sequence(_ASSISTANT, call)) if parallel else Text("")
    return CallGrammar(
        sequence(optional(_ASSISTANT), call, more),
        behind_thought=sequence(_ASSISTANT, call, more),
        cases=(
            Case(Text("<|start|>"), sequence("assistant", call)),
            Case(Text("<|start|>"), sequence("assistant", "<|channel|>", _HEADER), goes_on=True),
            Case(Text("<|channel|>"), channel),
            Case(Text("<|channel|>"), _HEADER, goes_on=True),
        ),
        first=(Case(Pattern(" *to="), sequence(to, more)),),
    )
