"""How much of what the demo model was taught it can do: `python -m demo.evaluate demo/model`."""

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from demo.cases import Case, all_cases
from demo.folder import load_model
from demo.prompts import Tokenizer, prompt_tokens

MAX_NEW_TOKENS = 320


class Answerer:
    """Greedy answers of a model."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer: Tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model: Any = load_model(folder)
        self._ends = {
            self._tokenizer.convert_tokens_to_ids(token)
            for token in ("<|im_end|>", "<|endoftext|>")
        }

    def answer(self, case: Case) -> tuple[str, bool]:
        """The raw answer, and whether it ended by itself."""
        prompt = prompt_tokens(self._tokenizer, case.messages, case.tools, case.enable_thinking)
        tokens = torch.tensor([prompt])
        with torch.inference_mode():
            made = self._model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                do_sample=False,
                temperature=None,
                top_p=None,
                max_new_tokens=MAX_NEW_TOKENS,
            )[0, tokens.shape[1] :].tolist()
        finished = made[-1] in self._ends
        return str(self._tokenizer.decode(made[:-1] if finished else made)), finished


def evaluate(folder: Path, verbose: bool) -> dict[str, tuple[int, int]]:
    """Passed and asked, by skill; prints what failed."""
    answerer = Answerer(folder)
    passed: dict[str, int] = defaultdict(int)
    asked: dict[str, int] = defaultdict(int)
    for case in all_cases():
        answer, finished = answerer.answer(case)
        good = case.passes(answer, finished)
        asked[case.skill] += 1
        passed[case.skill] += good
        if verbose or not good:
            mark = "ok  " if good else "FAIL"
            print(mark, case.skill, "|", case.messages[-1]["content"], "->", repr(answer))
    return {skill: (passed[skill], asked[skill]) for skill in asked}


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--verbose", action="store_true", help="show the answers that passed too")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rates = evaluate(args.model, args.verbose)
    for skill, (good, total) in rates.items():
        print(f"{skill:20} {good:3}/{total:<3} {100 * good / total:5.1f} %")
    good, total = (sum(column) for column in zip(*rates.values(), strict=True))
    print(f"{'all':20} {good:3}/{total:<3} {100 * good / total:5.1f} %")


if __name__ == "__main__":
    main()
