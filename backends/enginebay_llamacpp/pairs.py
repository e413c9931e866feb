"""A query and a document as one prompt, as rerankers were trained on them.

The formats are those of llama-server (`format_prompt_rerank` in its server-common.cpp).
"""

import re

from enginebay_llamacpp.files import unavailable
from enginebay_llamacpp.library import llama
from enginebay_llamacpp.model import Model
from enginebay_llamacpp.tokenizer import Tokenizer

_PLACES = re.compile(r"\{query\}|\{document\}")


class PairTokenizer:
    """Token ids of pairs, from any thread.

    They are those of the file's template `rerank`, else `[BOS] query [EOS] [SEP] document [EOS]`
    with those tokens that the vocabulary adds; where that closes texts with a SEP (WordPiece), the
    last is one. Queries and documents are plain text, whatever special tokens they spell.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        template: bytes | None = llama.llama_model_chat_template(model.pointer, b"rerank")
        if template:
            self._parts = self._of_template(model, template.decode(errors="replace"))
        else:
            self._parts = _of_vocabulary(model)

    def encode(self, query: str, document: str) -> list[int]:
        """Token ids of a pair. `InvalidRequestError` for a lone surrogate."""
        texts = {"{query}": query, "{document}": document}
        token_ids: list[int] = []
        for part in self._parts:
            if isinstance(part, int):
                token_ids.append(part)
            else:
                text = _PLACES.sub(lambda place: texts[place[0]], part)
                token_ids += self._tokenizer.encode_plain(text, add_special_tokens=False)
        return token_ids

    def _of_template(self, model: Model, template: str) -> list[int | str]:
        """Its special tokens, and the texts between them."""
        if missing := {"{query}", "{document}"}.difference(_PLACES.findall(template)):
            raise unavailable(
                model.path,
                f"its rerank template has no {' and no '.join(sorted(missing))}; convert it again",
            )
        special = {self._tokenizer.text(i): i for i in self._tokenizer.special_token_ids}
        special.pop("", None)
        spelled = "|".join(map(re.escape, sorted(special, key=len, reverse=True)))
        parts = re.split(f"({spelled})", template) if special else [template]
        return [special.get(part, part) for part in parts if part]


def _of_vocabulary(model: Model) -> list[int | str]:
    vocab = model.vocab
    separator: int = llama.llama_vocab_sep(vocab)
    end: int = llama.llama_vocab_eos(vocab)
    bos = [llama.llama_vocab_bos(vocab)] if llama.llama_vocab_get_add_bos(vocab) else []
    sep = [separator] if llama.llama_vocab_get_add_sep(vocab) else []
    eos = [end if end >= 0 else separator] if llama.llama_vocab_get_add_eos(vocab) else []
    if not (sep or eos) or min([*bos, *sep, *eos]) < 0:
        raise unavailable(
            model.path,
            "it has no rerank template, and its vocabulary no tokens to put between a query and a "
            "document; convert it again with a newer llama.cpp, or set in override_kv "
            "which tokens it adds",
        )
    return [*bos, "{query}", *eos, *sep, "{document}", *(eos or sep)]
