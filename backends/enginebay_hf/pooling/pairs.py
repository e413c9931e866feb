"""A query and a document as one text, as rerankers were trained on them."""

import re
from collections.abc import Sequence

from enginebay_checkpoint.tokenizer import Tokenizer
from enginebay_hf.pooling.sentence import SentenceFolder

QUERY, DOCUMENT = "\ue0f1", "\ue0f2"
"""Stand for the two texts in a template: characters for private use."""

# https://huggingface.co/Qwen/Qwen3-Reranker-0.6B: the format of its model card.
QWEN3_RERANKER = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "
    f"answer the query\n<Query>: {QUERY}\n<Document>: {DOCUMENT}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


class TokenizedPairs:
    """Pairs in the tokenizer's own format, a prompt before the query, from any thread."""

    def __init__(self, tokenizer: Tokenizer, prompt: str = "") -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt

    def encode(self, query: str, document: str) -> list[int]:
        """Token ids of a pair; special tokens in either are plain text."""
        return self._tokenizer.encode_pair(self._prompt + query, document)[0]

    @property
    def separated(self) -> bool:
        """Whether something stands between a query and a document."""
        ids = self.encode("a", "b")
        return any(i in self._tokenizer.special_token_ids for i in ids[1:-1])

    @property
    def separator(self) -> int | None:
        """The token that ends the first of two segments; None if segments are not told apart."""
        ids, types = self._tokenizer.encode_pair("a", "b")
        tells = self._tokenizer.tells_segments and 1 in types[1:]
        return ids[types.index(1) - 1] if tells else None


class TemplatePairs:
    """Pairs in a template with `QUERY` and `DOCUMENT` in it, from any thread."""

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        self._tokenizer = tokenizer
        special = {tokenizer.token_text(i): i for i in tokenizer.special_token_ids}
        special.pop("", None)
        spelled = "|".join(map(re.escape, sorted(special, key=len, reverse=True)))
        parts = re.split(f"({spelled})", template) if special else [template]
        self._parts: Sequence[int | str] = [special.get(part, part) for part in parts if part]

    def encode(self, query: str, document: str) -> list[int]:
        """Token ids of a pair; special tokens in either are plain text."""
        texts = {QUERY: query, DOCUMENT: document}
        token_ids: list[int] = []
        for part in self._parts:
            if isinstance(part, int):
                token_ids.append(part)
            else:
                text = re.sub(f"[{QUERY}{DOCUMENT}]", lambda place: texts[place[0]], part)
                token_ids += self._tokenizer.encode_plain(text, add_special_tokens=False)
        return token_ids


def template_of(tokenizer: Tokenizer, said: SentenceFolder) -> str:
    """What the tokenizer's chat template makes of a pair, as sentence-transformers uses it.

    The prompt is a message of the system. `ValueError` for a template that leaves a text out.
    """
    assert said.messages is not None
    texts = {"system": said.prompt} if said.prompt else {}
    texts |= {"query": QUERY, "document": DOCUMENT}
    template = tokenizer.render(said.messages.of(texts), **said.messages.variables)
    for role, mark in (("query", QUERY), ("document", DOCUMENT)):
        if template.count(mark) != 1:
            raise ValueError(f"its chat template does not put in the {role}")
    return template
