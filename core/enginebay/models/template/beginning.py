"""The tokens that a model's tokenizer puts in front of every text, usually a BOS."""

from dataclasses import dataclass

from enginebay.contract.backend import Backend
from enginebay.contract.types import ModelInfo


@dataclass(frozen=True, slots=True)
class Beginning:
    """The tokens, and the text that becomes these tokens; both empty if there are none."""

    token_ids: tuple[int, ...] = ()
    text: str = ""

    def is_written_in(self, text: str) -> bool:
        """Whether a text begins with it, after whitespace of a template."""
        return bool(self.text) and text.lstrip().startswith(self.text)


async def find_beginning(info: ModelInfo, backend: Backend) -> Beginning:
    """Compare the tokens of a letter with and without special tokens."""
    if info.chats or not info.generates:
        return Beginning()
    bare = await backend.tokenize("a", add_special_tokens=False)
    whole = await backend.tokenize("a", add_special_tokens=True)
    places = range(len(whole) - len(bare) + 1)
    start = next((at for at in places if whole[at : at + len(bare)] == bare), 0)
    if not start:
        return Beginning()
    text = await backend.detokenize(whole[:start])
    again = await backend.tokenize(text, add_special_tokens=False)
    return Beginning(tuple(whole[:start]), text if again == whole[:start] else "")
