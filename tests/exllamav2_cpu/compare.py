"""Compare the stand-in with a compiled extension: `python -m tests.exllamav2_cpu.compare`.

Run by hand where `exllamav2_ext` is built; no GPU is needed, as only what runs on the CPU is
compared. Random inputs go to both; a line for each function says how often they agreed, and the
first inputs on which they did not.
"""

import argparse
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.exllamav2_cpu.extension import extension

NONE = torch.empty((1, 1), device="meta")
VOCAB = 320

Arguments = list[Any]


def compare(
    name: str, real: ModuleType, stand_in: ModuleType, make: Callable[[], Arguments], times: int
) -> float:
    """Call both with equal inputs `times` times; the share of equal outcomes."""
    agreed = 0
    shown = False
    for _ in range(times):
        arguments = make()
        outcomes = [_outcome(getattr(module, name), arguments) for module in (real, stand_in)]
        if _same(*outcomes):
            agreed += 1
        elif not shown:
            shown = True
            print(f"  {name}{_short(arguments)}", *map(_short, outcomes), sep="\n    ")
    return agreed / times


def _outcome(function: Callable[..., Any], arguments: Arguments) -> list[Any]:
    """What it returns, and its tensors afterwards."""
    own = [a.clone() if isinstance(a, Tensor) and not a.is_meta else a for a in arguments]
    return [function(*own), *(a for a in own if isinstance(a, Tensor) and not a.is_meta)]


def _same(real: list[Any], stand_in: list[Any]) -> bool:
    for one, other in zip(real, stand_in, strict=True):
        if isinstance(one, Tensor):
            if not torch.allclose(one.float(), other.float(), rtol=1e-3, atol=1e-6):
                return False
        elif isinstance(one, list):
            if not np.allclose(one, other, rtol=1e-3):
                return False
        elif one != other:
            return False
    return True


def _short(values: list[Any]) -> str:
    def short(value: Any) -> str:
        if isinstance(value, Tensor) and not value.is_meta and value.numel() > 8:
            return f"{list(value.shape)} {value.flatten()[:4].tolist()}…"
        return "none" if isinstance(value, Tensor) and value.is_meta else repr(value)

    return "(" + ", ".join(short(value) for value in values) + ")"


# -------------------------------------------------------------------------------------------------


def sampling(**options: Any) -> Callable[[], Arguments]:
    """Arguments of `sample_basic`: neutral but for the options; callable ones are drawn."""

    def make() -> Arguments:
        drawn = {name: draw() if callable(draw) else draw for name, draw in options.items()}
        batch = drawn.get("batch", 1)
        top = drawn.get("top", 0)
        logits = torch.randn(batch, 1, VOCAB) * drawn.get("spread", 3.0)
        logits = logits.clamp(min=-60)
        logit_filter = NONE
        if drawn.get("filtered"):
            logit_filter = torch.rand(batch, VOCAB) < 0.3
            logit_filter[:, 7] = True
        return [
            logits,
            drawn.get("temperature", 1.0),
            drawn.get("top_k", 0),
            drawn.get("top_p", 0.0),
            drawn.get("top_a", 0.0),
            drawn.get("min_p", 0.0),
            drawn.get("tfs", 0.0),
            drawn.get("typical", 0.0),
            random.random(),
            torch.zeros(batch, 1, dtype=torch.long),
            torch.zeros(batch, 1),
            torch.zeros(batch, 1, top) if top else NONE,
            torch.zeros(batch, 1, top, dtype=torch.long) if top else NONE,
            logit_filter,
            "mu" in drawn,
            [drawn["mu"]] * batch if "mu" in drawn else [],
            2.0,
            0.1,
            drawn.get("post_temperature", 1.0),
            torch.rand(VOCAB) < 0.9 if "xtc" in drawn else NONE,
            drawn.get("xtc", 0.0),
            0.1,
            drawn.get("min_temp", 0.0),
            drawn.get("max_temp", 0.0),
            drawn.get("temp_exponent", 1.0),
            drawn.get("smoothing", 0.0),
            drawn.get("skew", 0.0),
        ]

    return make


def share() -> float:
    return random.uniform(0.02, 0.98)


SAMPLERS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": lambda: random.uniform(0.01, 3)},
    "greedy": {"temperature": 0.0},
    "filtered": {"filtered": True},
    "top_k": {"top_k": lambda: random.randint(1, VOCAB + 5)},
    "top_p": {"top_p": share},
    "top_k, top_p": {"top_k": lambda: random.randint(1, 60), "top_p": share},
    "top_a": {"top_a": share},
    "min_p": {"min_p": share},
    "top_k, min_p": {"top_k": lambda: random.randint(2, 9), "min_p": lambda: share() / 9},
    "tfs": {"tfs": share},
    "typical": {"typical": share},
    "mirostat": {"mu": lambda: random.choice((0.0, 1.5, 4.0))},
    "temperature last": {"post_temperature": lambda: random.uniform(0.1, 3), "min_p": 0.02},
    "dynamic temperature": {"min_temp": share, "max_temp": 2.0, "temp_exponent": 1.5},
    "smoothing": {"smoothing": share, "batch": lambda: random.randint(1, 3)},
    "skew": {"skew": lambda: random.uniform(-1, 1)},
    "xtc, unsorted": {"xtc": share, "spread": 4.0},
    "xtc, sorted": {"xtc": share, "top_k": 40, "spread": 4.0},
    "top probabilities": {"top": 8, "top_k": lambda: random.randint(1, 12), "filtered": True},
    "top probabilities of all": {"top": 8},
    "batch": {"batch": 3, "top_p": share},
    "everything": {
        "temperature": lambda: random.uniform(0.3, 2),
        "top_k": lambda: random.randint(2, 80),
        "top_p": lambda: random.uniform(0.5, 1),
        "top_a": lambda: share() / 9,
        "min_p": lambda: share() / 9,
        "tfs": lambda: random.uniform(0.8, 1),
        "typical": lambda: random.uniform(0.8, 1),
        "xtc": share,
        "top": 4,
        "filtered": lambda: random.random() < 0.5,
        "spread": 2.0,
    },
}


def penalties() -> Arguments:
    length = random.randint(1, 60)
    return [
        torch.randint(0, VOCAB + 20, (1, length)) % random.choice((9, VOCAB + 20)),
        random.uniform(0.8, 1.5),
        random.choice((-1, 0, 5, 30)),
        random.choice((0, 7, 40)),
        random.uniform(-1, 1),
        random.uniform(-1, 1),
        torch.randn(1, 1, VOCAB),
    ]


def filters() -> Arguments:
    ids = random.sample(range(VOCAB), random.randint(1, 20))
    if random.random() < 0.7:
        ids.sort()
    return [torch.ones(1, VOCAB, dtype=torch.bool), [ids]]


def added() -> Arguments:
    return [torch.randn(3, 1, VOCAB), torch.randn(VOCAB)]


def ones() -> Arguments:
    return [torch.zeros(2, VOCAB, dtype=torch.bool)]


def copied() -> Arguments:
    return [torch.zeros(3, 8), torch.randn(3, 8)]


def texts() -> Arguments:
    def text(longest: int) -> str:
        return "".join(random.choices("abä", k=random.randint(1, longest)))

    strings = [text(5) for _ in range(random.randint(1, 4))]
    packed = [string.encode("utf-32-le") for string in strings]
    offsets = np.cumsum([0, *map(len, packed)]).astype(np.uint32).view(np.uint8)
    return [
        np.frombuffer(text(9).encode("utf-32-le"), np.uint8),
        offsets,
        np.frombuffer(b"".join(packed), np.uint8),
    ]


def sequences() -> Arguments:
    a, b = torch.randint(0, 2, (1, 12)), torch.randint(0, 2, (1, random.randint(1, 12)))
    b[:, :5] = a[:, : min(5, b.shape[1])]
    return [a, b, random.randint(0, 12)]


OTHERS: dict[str, Callable[[], Arguments]] = {
    "apply_rep_penalty": penalties,
    "logit_filter_exclusive": filters,
    "fast_fadd_cpu": added,
    "fast_fill_cpu_ones_bool": ones,
    "fast_copy_cpu": copied,
    "partial_strings_match": texts,
    "count_match": sequences,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    import exllamav2_ext as real

    random.seed(options.seed)
    torch.manual_seed(options.seed)
    stand_in = extension()
    cases = [("sample_basic", label, sampling(**drawn)) for label, drawn in SAMPLERS.items()]
    cases += [(name, "", make) for name, make in OTHERS.items()]
    for name, label, make in cases:
        agreed = compare(name, real, stand_in, make, options.times)
        print(f"{agreed:8.2%}  {name} {label}".rstrip())


if __name__ == "__main__":
    main()
