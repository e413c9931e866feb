"""Compare a GGUF file with its model: `python -m demo.verify_gguf demo/model demo.gguf`.

Tokens of nasty strings, logits at every position and greedy text have to agree between transformers
and llama-cpp-python. Exits with 1 on a difference.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import torch
from transformers import AutoTokenizer

from demo.cases import WEATHER, Case, chat
from demo.folder import load_model
from demo.prompts import Tokenizer, prompt_tokens

_STRINGS = (
    "Hello world",
    "  two  spaces\n\n\nand newlines \t tabs",
    "It's I'll we've 12345 3.14 x=y+1; {\"a\": [1,2]}",
    "héllo ünïcode 日本語 😀 \u200d",
    "<|im_start|>user\nhi<|im_end|>\n<think>x</think><tool_call>{}</tool_call>",
    "<tool_response>\n{}\n</tool_response> <|endoftext|>",
    "",
    " ",
    "\n",
    "\n\n",
    "a  b   c\n  d",
    "<think>\n\n</think>\n\n",
)
_CASES = (
    Case("greeting", chat("hi there"), ""),
    Case("sum", chat("What is 7 + 5?"), ""),
    Case("sum, no thinking", chat("What is 7 + 5?"), "", [], False),
    Case("capital", chat("What is the capital of France?"), ""),
    Case("tool", chat("What is the weather in Oslo?"), "", [WEATHER]),
)
_TOLERANCE = {"f32": 0.01, "f16": 0.05, "bf16": 0.5, "q8_0": 0.5}
_FILE_TYPES = {"0": "f32", "1": "f16", "7": "q8_0", "32": "bf16"}


def load_llama(path: Path, without_repacking: bool) -> Any:
    """Load a GGUF file so that the logits of all positions are kept."""
    defaults = llama_cpp.llama_cpp.llama_model_default_params

    def patched() -> Any:
        params = defaults()
        params.use_extra_bufts = False
        return params

    if without_repacking:
        # Repacked q8_0 crashes llama.cpp on processors with AMX when several tokens are evaluated.
        llama_cpp.llama_cpp.llama_model_default_params = patched
    try:
        return llama_cpp.Llama(str(path), n_ctx=1024, logits_all=True, verbose=False, n_threads=1)
    finally:
        llama_cpp.llama_cpp.llama_model_default_params = defaults


class Comparison:
    """One model on both sides, and the number of differences found."""

    def __init__(self, folder: Path, file: Path) -> None:
        self._tokenizer: Tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model: Any = load_model(folder)
        # The type of the weights can be read only after loading, so be careful in every case.
        self._llama = load_llama(file, without_repacking=True)
        self.file_type = _FILE_TYPES[self._llama.metadata["general.file_type"]]
        if self.file_type != "q8_0":
            self._llama = load_llama(file, without_repacking=False)
        self.differences = 0

    def _report(self, good: bool, text: str) -> None:
        self.differences += not good
        print("ok  " if good else "DIFF", text)

    def strings(self) -> None:
        """Tokens of text, and text of tokens."""
        for text in _STRINGS:
            wanted = self._tokenizer(text, add_special_tokens=False).input_ids
            found = self._llama.tokenize(text.encode(), add_bos=False, special=True)
            back = self._llama.detokenize(found, special=True).decode() if found else ""
            self._report(wanted == found and back == text, f"tokens of {text!r}")
        ends = (self._llama.token_bos(), self._llama.token_eos())
        wanted_ends = (self._tokenizer.bos_token_id, self._tokenizer.eos_token_id)
        self._report(ends == wanted_ends, f"bos and eos {ends}")

    def _prompt(self, case: Case) -> list[int]:
        return prompt_tokens(self._tokenizer, case.messages, case.tools, case.enable_thinking)

    def logits(self, case: Case) -> None:
        """Logits at every position of a prompt."""
        tokens = self._prompt(case)
        self._llama.reset()
        self._llama.eval(tokens)
        found = np.array(self._llama.scores[: len(tokens)])
        with torch.inference_mode():
            wanted = self._model(torch.tensor([tokens])).logits[0].numpy()
        apart = float(np.abs(found - wanted).max())
        same = float((found.argmax(-1) == wanted.argmax(-1)).mean())
        good = apart <= _TOLERANCE[self.file_type] * float(wanted.std())
        if self.file_type in ("f32", "f16"):
            good = good and same == 1.0
        self._report(
            good,
            f"logits, {case.skill}: {len(tokens)} positions, at most {apart:.5f} apart"
            f" (deviation {wanted.std():.2f}), {same:.1%} same choice",
        )

    def greedy(self, case: Case) -> None:
        """The greedy answer."""
        tokens = self._prompt(case)
        prompt = torch.tensor([tokens])
        with torch.inference_mode():
            made = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                temperature=None,
                top_p=None,
                max_new_tokens=64,
            )[0, len(tokens) :]
        wanted = self._tokenizer.decode(made, skip_special_tokens=True)
        answer = self._llama.create_completion(
            tokens, max_tokens=64, temperature=0, repeat_penalty=1.0
        )
        found = answer["choices"][0]["text"]
        self._report(found == wanted, f"greedy, {case.skill}: {wanted!r}")
        if found != wanted:
            print("     but got", repr(found))


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder of the model")
    parser.add_argument("file", type=Path, help="GGUF file made from it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    comparison = Comparison(args.model, args.file)
    comparison.strings()
    for case in _CASES:
        comparison.logits(case)
        comparison.greedy(case)
    print(f"{comparison.file_type}: {comparison.differences} differences")
    sys.exit(comparison.differences > 0)


if __name__ == "__main__":
    main()
