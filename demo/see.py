"""Teach the demo model to see: `python -m demo.see --text TEXT --tower TOWER --out demo/model`.

The tower of `demo.tower` and the language model learn together to answer questions about pictures.
So that the language model unlearns little, it also reads texts without pictures, where it learns to
predict what it predicted before.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoTokenizer, LlamaForCausalLM, LlavaForConditionalGeneration

from demo.batches import IGNORED, Encoder
from demo.memories import Memories, memories
from demo.patches import PatchHeads
from demo.prompts import Tokenizer
from demo.seeing import make_seeing_model, make_tower, save_seeing_model
from demo.sights import SightBatch, Sights, add_placeholder, sight_batches
from demo.train import Optimizer, loss_of

_RATES = {"multi_modal_projector": 1.0, "vision_tower": 0.5, "language_model": 0.3}
"""Learning rates of the parts, as shares of the highest."""
_PATCHES = 0.3
"""The weight of knowing what lies in each patch, beside that of answers."""
_MEMORY = 5.0
"""The weight of reading texts as before, beside that of answers."""


def _lessons(encoder: Encoder, args: argparse.Namespace) -> Iterator[list[SightBatch]]:
    """For each step texts about pictures, made by a process of their own."""
    made: Any = torch.utils.data.DataLoader(
        Sights(encoder, args.seed),
        args.rows,
        num_workers=1,
        prefetch_factor=4,
        collate_fn=partial(sight_batches, parts=args.parts),
    )
    return iter(made)


def _sight_loss(
    model: LlavaForConditionalGeneration, heads: PatchHeads, batch: SightBatch
) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed over the tokens to write; and, as a mean, over what lies in the patches."""
    if not len(batch.kinds):
        return loss_of(model, batch.texts), torch.zeros(())
    seen = model.get_image_features(batch.pixels, output_hidden_states=True, return_dict=True)
    inputs = {**batch.texts.inputs, "mm_encoder_outputs": {"image": seen}}
    loss = loss_of(model, replace(batch.texts, inputs=inputs))
    return loss, heads(seen.hidden_states[-1], batch.kinds, batch.colours)[0]


def _memory_loss(model: Any, teacher: Any, batch: Memories) -> torch.Tensor:
    """How far the model's predictions have moved from the teacher's, in nats a token.

    Those of answers count three times as much as others, and a little for being right. Free targets
    count for being right alone.
    """
    with torch.no_grad():
        wanted = _logits(teacher, batch).log_softmax(-1)
    found = _logits(model, batch)
    kept = found[:, : wanted.shape[1]].log_softmax(-1)
    moved = functional.kl_div(kept, wanted, reduction="none", log_target=True).sum(-1)
    targets = functional.pad(batch.targets[:, 1:], (0, 1), value=IGNORED)[batch.read]
    answers, free = targets != IGNORED, batch.free[batch.read]
    weights = torch.where(answers, torch.where(free, 0.0, 1.5), 0.5)
    loss = (moved * weights).mean()
    for chosen, weight in ((answers & ~free, 0.02), (answers & free, 1.0)):
        if chosen.any():
            loss = loss + weight * functional.cross_entropy(found[chosen], targets[chosen])
    return loss


def _logits(model: Any, batch: Memories) -> torch.Tensor:
    hidden = model.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
    logits: torch.Tensor = model.lm_head(hidden[batch.read]).float()
    return logits


def _parts(model: LlavaForConditionalGeneration) -> list[tuple[float, list[Any]]]:
    """Named parameters with the share of the rate they learn at."""
    named = [pair for pair in model.named_parameters() if pair[1].requires_grad]
    return [
        (share, [pair for pair in named if pair[0].startswith(f"model.{part}.")])
        for part, share in _RATES.items()
    ]


def _learn(model: Any, heads: PatchHeads, batches: list[SightBatch]) -> float:
    """Add up the gradients of one step; returns the mean loss per token."""
    tokens = sum(int((batch.texts.targets != IGNORED).sum()) for batch in batches)
    total = 0.0
    for batch in batches:
        with torch.autocast("cpu", torch.bfloat16):
            answers, patches = _sight_loss(model, heads, batch)
            loss = answers / tokens + _PATCHES * patches / len(batches)
        torch.autograd.backward(loss)
        total += answers.item() / tokens
    return total


def train(
    model: LlavaForConditionalGeneration,
    teacher: LlamaForCausalLM,
    encoder: Encoder,
    args: argparse.Namespace,
) -> None:
    """`--rows` texts about pictures a step, and `--text-rows` about others."""
    heads = PatchHeads(model.config.vision_config.hidden_size)
    parts = [*_parts(model), (1.0, [(f"embed.{n}", p) for n, p in heads.named_parameters()])]
    optimizer = Optimizer(parts, args.rate, args.steps)
    lessons = _lessons(encoder, args)
    texts = memories(encoder, teacher, args.seed + 1, args.text_rows, args.parts)
    started, seeing, moved = time.monotonic(), 1.0, 0.1
    for step in range(1, args.steps + 1):
        optimizer.zero()
        seeing += 0.05 * (_learn(model, heads, next(lessons)) - seeing)
        for batch in next(texts):
            with torch.autocast("cpu", torch.bfloat16):
                loss = _memory_loss(model, teacher, batch)
            torch.autograd.backward(_MEMORY * loss / args.parts)
            moved += 0.05 * (loss.item() - moved)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 0:
            seconds = f"{time.monotonic() - started:.0f} s"
            print(f"step {step} pictures {seeing:.4f} text {moved:.4f} {seconds}", flush=True)
        if args.save_every and step % args.save_every == 0:
            save_seeing_model(model, encoder.tokenizer, args.out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True, help="folder of the language model")
    parser.add_argument("--tower", type=Path, help="weights of the tower, from demo.tower")
    parser.add_argument("--start", type=Path, help="continue from this model that sees")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=12, help="texts about pictures a step")
    parser.add_argument("--parts", type=int, default=2, help="batches they are sorted into")
    parser.add_argument("--text-rows", type=int, default=24, help="others a step")
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=0, help="also save every so many steps")
    return parser.parse_args()


def main() -> None:
    """Command line entry."""
    args = _arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(args.text)
    template = Path(__file__).with_name("chat_template.jinja")
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    image = add_placeholder(tokenizer)
    teacher = LlamaForCausalLM.from_pretrained(args.text, dtype=torch.float32).eval()
    if args.start:
        model = LlavaForConditionalGeneration.from_pretrained(args.start, dtype=torch.float32)
        model.model.vision_tower.post_layernorm.requires_grad_(False)
    else:
        tower = make_tower()
        tower.load_state_dict(load_file(args.tower))
        model = make_seeing_model(teacher, tower, image)
    model.train()
    train(model, teacher, Encoder(tokenizer), args)
    save_seeing_model(model, tokenizer, args.out)


if __name__ == "__main__":
    main()
