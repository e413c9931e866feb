"""Train the demo model from scratch: `python -m demo.train --out demo/model`."""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from demo.batches import IGNORED, Batch, Encoder, batches
from demo.folder import ROPE_THETA, save
from demo.prompts import Tokenizer
from demo.tokenizer import CONTEXT_LENGTH, train_tokenizer


def make_model(tokenizer: Tokenizer, seed: int) -> LlamaForCausalLM:
    """A Llama whose shape every engine accepts: head size 64, all widths multiples of 32."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT_LENGTH,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def loss_of(model: Any, batch: Batch) -> torch.Tensor:
    """Summed cross entropy over the tokens to write; the others never meet the vocabulary."""
    made = model.model(input_ids=batch.tokens, use_cache=False, **batch.inputs)
    hidden = made.last_hidden_state
    targets = batch.targets[:, 1:].reshape(-1)
    wanted = targets != IGNORED
    chosen = hidden[:, :-1].reshape(-1, hidden.shape[-1])[wanted]
    logits = model.lm_head(chosen).float()
    return functional.cross_entropy(logits, targets[wanted], reduction="sum")


def backward(model: Any, parts: list[Batch]) -> float:
    """Add up the gradients of one step; returns the mean loss per token."""
    amount = sum(int((part.targets != IGNORED).sum()) for part in parts)
    total = 0.0
    for part in parts:
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, part) / amount
        torch.autograd.backward(loss)
        total += loss.item()
    return total


Parts = list[tuple[float, list[tuple[str, torch.nn.Parameter]]]]
"""Named parameters, and the share of the learning rate that they learn at."""


class Optimizer:
    """Muon for the weight matrices, AdamW for the rest; one learning rate cycle."""

    def __init__(self, parts: Parts, rate: float, steps: int) -> None:
        matrices: list[dict[str, Any]] = []
        others: list[dict[str, Any]] = []
        for share, named in parts:
            kinds: tuple[list[torch.nn.Parameter], ...] = ([], [])
            for name, parameter in named:
                kinds[parameter.ndim == 2 and "embed" not in name].append(parameter)
            others.append({"params": kinds[0], "lr": rate * share})
            matrices.append({"params": kinds[1], "lr": rate * share})
        self._parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        ]
        self._schedules = [
            torch.optim.lr_scheduler.OneCycleLR(
                part,
                [group["lr"] for group in part.param_groups],
                total_steps=steps,
                pct_start=0.06,
                cycle_momentum=False,
            )
            for part in self._parts
        ]

    def zero(self) -> None:
        """Forget the gradients."""
        for part in self._parts:
            part.zero_grad()

    def step(self) -> None:
        """Move the weights, and the learning rate."""
        for part, schedule in zip(self._parts, self._schedules, strict=True):
            part.step()
            schedule.step()


def train(model: LlamaForCausalLM, encoder: Encoder, args: argparse.Namespace) -> None:
    """Short conversations first, then all kinds."""
    optimizer = Optimizer([(1.0, list(model.named_parameters()))], args.rate, args.steps)
    easy = batches(encoder, args.seed + 1, args.rows * 3 // 2, args.parts, easy=True)
    normal = batches(encoder, args.seed, args.rows, args.parts)
    started, mean = time.monotonic(), 0.0
    for step in range(1, args.steps + 1):
        optimizer.zero()
        loss = backward(model, next(easy if step <= args.easy_steps else normal))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss if step == 1 else 0.95 * mean + 0.05 * loss
        if step % 25 == 0:
            print(f"step {step} loss {mean:.4f} {time.monotonic() - started:.0f} s", flush=True)
        if args.save_every and step % args.save_every == 0:
            save(model, encoder.tokenizer, args.out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument(
        "--start", type=Path, help="continue from this model instead of from nothing"
    )
    parser.add_argument("--steps", type=int, default=2300)
    parser.add_argument("--easy-steps", type=int, default=500, help="steps on short conversations")
    parser.add_argument("--rows", type=int, default=32, help="conversations per step")
    parser.add_argument("--parts", type=int, default=4, help="batches they are sorted into")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=0, help="also save every so many steps")
    return parser.parse_args()


def main() -> None:
    """Command line entry."""
    args = _arguments()
    torch.set_num_threads(args.threads)
    if args.start:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(args.start)
        model = LlamaForCausalLM.from_pretrained(args.start, dtype=torch.float32)
    else:
        tokenizer = train_tokenizer()
        model = make_model(tokenizer, args.seed)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    model.set_attn_implementation("eager")  # for short rows on a CPU faster than sdpa
    model.train()
    train(model, Encoder(tokenizer), args)
    save(model, tokenizer, args.out)


if __name__ == "__main__":
    main()
