"""The format of Muse: messages to oneself are thought, those to the user are the answer."""

import re

from parsers.channels import Channels
from parsers.messages import Tags

# Calls are tagged inside their messages, so that a family of tool formats reads them.
_NEVER = re.compile(r"(?!)")

REASONING = Channels(
    Tags(begin="<|start|>", message="<|message|>", ends=("<|eom|>", "<|eot|>"), call=_NEVER),
    thought=re.compile(r"to=self\b"),
    evidence="to=self<|message|>",
    opening=" to=self<|message|>",
    end="<|eom|>",
    answer="<|start|>assistant to=user<|message|>",
    answer_or_call="<|start|>assistant",
)
