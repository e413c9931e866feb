"""What number formats of the hf backend lose on a text, against float32.

    python benchmarks/quantization_loss.py                        (the demo model, its chats)
    python benchmarks/quantization_loss.py --model FOLDER --text FILE

Prints as JSON, for each format: perplexity; the mean KL divergence of its next-token distributions
from float32's, in nats; how often both find the same token likeliest.
"""

import argparse
import json
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks import models
from demo.batches import Encoder
from demo.data import dialogues
from enginebay_hf.packed.int8 import quantize

_FORMATS = {
    "bfloat16": (torch.bfloat16, False),
    "int8, rest bfloat16": (torch.bfloat16, True),
    "int8, rest float32": (torch.float32, True),
}
_WINDOW = 256


def windows(tokenizer: Any, text: Path | None, count: int) -> list[list[int]]:
    """Token ids of chats as the demo model is taught them, or of pieces of a text."""
    if text is None:
        encoder = Encoder(tokenizer)
        chats = (encoder.encode(made)[0] for made in dialogues(2026))
        return list(islice(chats, count))
    ids = tokenizer.encode(text.read_text("utf-8"))
    pieces = [ids[start : start + _WINDOW] for start in range(0, len(ids), _WINDOW)]
    return [piece for piece in pieces[:count] if len(piece) > 1]


@torch.inference_mode()
def distributions(folder: Path, texts: list[list[int]], dtype: Any, int8: bool) -> list[Any]:
    """The log-probabilities of each text's next tokens."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    if int8:
        quantize(model)
    return [model(torch.tensor([ids])).logits[0, :-1].float().log_softmax(-1) for ids in texts]


def compare(texts: list[list[int]], exact: list[Any], other: list[Any]) -> dict[str, float]:
    """The figures of one format beside float32."""
    loss = divergence = agreeing = total = 0.0
    for ids, p, q in zip(texts, exact, other, strict=True):
        loss -= q.gather(-1, torch.tensor(ids[1:])[:, None]).sum().item()
        divergence += (p.exp() * (p - q)).sum().item()
        agreeing += (p.argmax(-1) == q.argmax(-1)).sum().item()
        total += len(ids) - 1
    return {
        "perplexity": round(float(torch.tensor(loss / total).exp()), 4),
        "kl": round(divergence / total, 6),
        "same_token": round(agreeing / total, 4),
    }


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="demo, 100m, 1b or a folder")
    parser.add_argument("--text", type=Path, help="default: chats as the demo model knows them")
    parser.add_argument("--windows", type=int, default=40, help="chats, or pieces of the text")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    folder = models.find(args.model, "float32").folder
    texts = windows(AutoTokenizer.from_pretrained(folder), args.text, args.windows)
    exact = distributions(folder, texts, torch.float32, int8=False)
    results: dict[str, Any] = {
        "model": args.model,
        "tokens": sum(len(ids) - 1 for ids in texts),
        "float32": {"perplexity": compare(texts, exact, exact)["perplexity"]},
    }
    for name, (dtype, int8) in _FORMATS.items():
        results[name] = compare(texts, exact, distributions(folder, texts, dtype, int8))
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
