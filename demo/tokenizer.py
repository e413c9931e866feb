"""The byte-level BPE tokenizer of the demo model, trained on its own conversations."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from demo import words
from demo.data import dialogues
from demo.prompts import Tokenizer

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VISIBLE = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
CONTEXT_LENGTH = 4096
COMMON_WORDS = 750
SPACE = "\u0120"
"""How a space is written in a byte-level vocabulary."""


def _corpus(amount: int) -> list[str]:
    """Texts to learn merges from. Without digits, so that every number is spelled out in digits."""
    texts = []
    for made in itertools.islice(dialogues(seed=1), amount):
        parts = [str(message.get("content") or "") for message in made.messages]
        parts += [made.completion, "\n".join(json.dumps(tool) for tool in made.tools)]
        texts += [re.sub(r"<[^>]*>|\d", " ", part) for part in parts]
    return texts


def _learn(texts: list[str], vocab_size: int) -> RawTokenizer:
    """Merges within words. No merge joins a word with the space before it."""
    raw = RawTokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(" ", "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*CONTROL, *VISIBLE],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    raw.train_from_iterator(texts, trainer=trainer)
    return raw


def _common_words(texts: list[str], vocab: dict[str, int], amount: int) -> list[str]:
    """The most frequent whole words, without names, that are one token and follow a space."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    names = {name.lower() for name in words.NAMES + words.CITIES}
    found = Counter(piece for text in texts for piece, _ in split.pre_tokenize_str(text))
    good = (
        piece[1:]
        for piece, _ in sorted(found.items(), key=lambda item: (-item[1], item[0]))
        if piece[0] == SPACE and piece[1:] in vocab and piece[1:] not in names
    )
    return [word for word in good if word == word.lower()][:amount]


def train_tokenizer(vocab_size: int = 3072, amount: int = 12_000) -> Tokenizer:
    """Train merges and add the special tokens.

    Names are the same tokens wherever they stand, after a space as well as after a quote, because
    only common words are merged with the space before them. This makes them easy to copy.
    """
    texts = _corpus(amount)
    raw = _learn(texts, vocab_size - COMMON_WORDS)
    # This is what GGUF calls pre-tokenizer "gpt-2"; to_gguf.py relies on it.
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    raw.decoder = decoders.ByteLevel()
    described = json.loads(raw.to_str())
    vocab, merges = described["model"]["vocab"], described["model"]["merges"]
    for word in _common_words(texts, vocab, COMMON_WORDS):
        vocab[SPACE + word] = len(vocab)
        merges.append([SPACE, word])
    for added in described["added_tokens"]:
        added["special"] = added["content"] in CONTROL
    make: Callable[..., Tokenizer] = PreTrainedTokenizerFast
    tokenizer = make(
        tokenizer_object=RawTokenizer.from_str(json.dumps(described)),
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_LENGTH,
    )
    template = Path(__file__).with_name("chat_template.jinja")
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    return tokenizer
