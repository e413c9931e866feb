"""How well the demo model sees: `python -m demo.evaluate_pictures demo/model`.

Counts the exact answers to questions about pictures that it has not learned from.
With `--gguf` and `--mmproj` through llama.cpp too, and how often both engines say the same.
"""

import argparse
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from demo.pictures import picture
from demo.prompts import Tokenizer
from demo.questions import Question, ask

MAX_NEW_TOKENS = 64
Answer = Callable[[str, Image.Image], str]
"""From a rendered prompt with `IMAGE` in it, and the picture, to the greedy answer."""


class Held(NamedTuple):
    """A picture that no training has seen, a question and the rendered prompt."""

    image: Image.Image
    question: Question
    prompt: str
    things: int


def held_out(tokenizer: Tokenizer, amount: int, seed: str) -> Iterator[Held]:
    """Always the same ones for a seed, which training, counting its seeds, never draws."""
    rng = random.Random(f"held out {seed}")
    for _ in range(amount):
        seen = picture(rng)
        question = ask(rng, seen.things)
        parts = [{"type": "image"}, {"type": "text", "text": question.text}]
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": parts if rng.random() < 0.6 else parts[::-1]}],
            add_generation_prompt=True,
            tokenize=False,
        )
        yield Held(seen.image, question, prompt, len(seen.things))


class Transformers:
    """Answers of the model in a folder."""

    def __init__(self, folder: Path) -> None:
        self.processor: Any = AutoProcessor.from_pretrained(folder)
        self._model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)

    def answer(self, prompt: str, image: Image.Image) -> str:
        inputs = self.processor(text=[prompt], images=[image], return_tensors="pt")
        with torch.inference_mode():
            made = self._model.generate(
                **inputs,
                do_sample=False,
                temperature=None,
                top_p=None,
                max_new_tokens=MAX_NEW_TOKENS,
            )[0, inputs["input_ids"].shape[1] :]
        return str(self.processor.tokenizer.decode(made, skip_special_tokens=True))


def evaluate(answer: Answer, cases: list[Held], name: str) -> list[str]:
    """Print how many were right, by kind of question and by things in the picture; all answers."""
    asked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    answers = []
    for case in cases:
        answers.append(answer(case.prompt, case.image).split("</think>")[-1].strip())
        good = answers[-1] == case.question.answer
        if not good:
            print("FAIL", case.question, "->", repr(answers[-1]))
        amount = ("no thing", "one thing", "two things", "three things")[case.things]
        for row in (case.question.kind, amount, "all"):
            asked[row] += 1
            right[row] += good
    print(name)
    for row in sorted(asked, key=lambda row: (row == "all", " thing" in row, row)):
        print(f"{row:14} {right[row]:3} of {asked[row]}")
    return answers


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder of the model")
    parser.add_argument("--gguf", type=Path, help="its language model, from demo.to_gguf")
    parser.add_argument("--mmproj", type=Path, help="what sees of it, from demo.to_gguf --mmproj")
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--seed", default="1", help="another one for other pictures")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers = Transformers(args.model)
    cases = list(held_out(transformers.processor.tokenizer, args.pictures, args.seed))
    answers = evaluate(transformers.answer, cases, "transformers")
    if args.gguf:
        from demo.seeing_llama import SeeingLlama

        found = evaluate(SeeingLlama(args.gguf, args.mmproj).answer, cases, "llama.cpp")
        same = sum(one == other for one, other in zip(answers, found, strict=True))
        print(f"the same answer from both: {same} of {len(cases)}")


if __name__ == "__main__":
    main()
