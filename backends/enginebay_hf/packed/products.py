"""Measures which number format multiplies fastest on this processor."""

import math
from collections.abc import Callable
from time import thread_time

import torch
from torch import Tensor, nn

from enginebay_hf.number_format import CpuCosts, CpuFormat, record_costs, recorded_costs
from enginebay_hf.packed.narrow import NarrowLinear
from enginebay_hf.packed.prepack import PrepackedLinear, works

_INPUTS, _OUTPUTS = 2048, 8192  # a large layer of a small model: 32 MiB in 16 bits
_ROWS = (1, 1, 4, 16)  # one stream counts twice, because most self-hosters have one
_ROUNDS = 5
_SECONDS = 1.0

_Products = dict[CpuFormat, tuple[Callable[[Tensor], Tensor], torch.dtype]]


def cpu_costs() -> CpuCosts:
    """Return the cost of each format from disk, or measure and record the costs in a second."""
    if (known := recorded_costs()) is not None:
        return known
    costs = measured_costs()
    record_costs(costs)
    return costs


@torch.inference_mode()
def measured_costs() -> CpuCosts:
    """Return the geometric mean of milliseconds a product of 1, 4 and 16 rows in each format.

    One thread computes, its CPU time counts, and the formats take turns, so that other programs
    matter little. Several threads share the memory's bandwidth, which favors 16 bits even more.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(_products())
    finally:
        torch.set_num_threads(threads)


def _measure(products: _Products) -> CpuCosts:
    best: dict[tuple[CpuFormat, int], float] = {}
    end = math.inf
    for number in range(_ROUNDS):
        for name, (layer, dtype) in products.items():
            for rows in {*_ROWS}:
                hidden = torch.ones(rows, _INPUTS, dtype=dtype)
                began = thread_time()
                layer(hidden)
                took = thread_time() - began
                if number:  # the first turn prepares the kernels
                    best[name, rows] = min(took, best.get((name, rows), math.inf))
        end = thread_time() + _SECONDS if not number else end
        if thread_time() > end:
            break
    return {
        name: 1e3 * math.exp(sum(math.log(best[name, rows]) for rows in _ROWS) / len(_ROWS))
        for name in products
    }


def _products() -> _Products:
    """Return a layer for each format, and the number format of its input."""
    linear = nn.Linear(_INPUTS, _OUTPUTS, bias=False, device="meta").to_empty(device="cpu")
    nn.init.uniform_(linear.weight, -1, 1)
    products: _Products = {}
    products["narrow"] = NarrowLinear(linear, linear.weight.half()), torch.float32
    exact = PrepackedLinear(linear) if works(torch.float32) else linear
    products["float32"] = exact, torch.float32
    if works(torch.bfloat16):
        products["bfloat16"] = PrepackedLinear(linear.bfloat16()), torch.bfloat16
    return products
