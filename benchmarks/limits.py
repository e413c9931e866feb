"""How fast the hardware lets an engine be, without any server.

    python benchmarks/limits.py decode MODEL.gguf --streams 16   (needs llama-cpp-python)
    python benchmarks/limits.py gemm MODEL_FOLDER --streams 16   (needs torch, transformers)

`decode` calls `llama_decode` with ready batches and never looks at the logits. `gemm` runs only
the matrix products of the Linear layers, as often and on as many rows as the answers need, and
takes the faster of torch's two ways for each size. Prints tokens/s and tokens per CPU-second as
JSON. This file stands alone: it runs in the environments of the peers.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BATCH = 512
"""Most prompt tokens in one forward pass."""

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Amount:
    """What there is to do: `streams` answers of `tokens` tokens to `prompt_tokens` tokens each."""

    streams: int
    prompt_tokens: int
    tokens: int
    threads: int


def decode(path: str, amount: Amount) -> Work:
    """The bare `llama_decode` loop over a GGUF file."""
    import llama_cpp

    quiet = llama_cpp.llama_log_callback(lambda _level, _text, _data: None)
    llama_cpp.llama_log_set(quiet, None)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        path.encode(), llama_cpp.llama_model_default_params()
    )
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = amount.streams * -(-(amount.prompt_tokens + amount.tokens) // 256) * 256
    params.n_batch = params.n_ubatch = BATCH
    params.n_seq_max = amount.streams
    params.n_threads = params.n_threads_batch = amount.threads
    params.kv_unified = False
    context = llama_cpp.llama_init_from_model(model, params)
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def add(position: int, sequence: int, wants_logits: bool) -> None:
        row = batch.n_tokens
        batch.token[row] = (100 + 37 * position + sequence) % vocabulary
        batch.pos[row] = position
        batch.n_seq_id[row] = 1
        batch.seq_id[row][0] = sequence
        batch.logits[row] = wants_logits
        batch.n_tokens = row + 1

    def run() -> None:
        if batch.n_tokens and llama_cpp.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_synchronize(context)
        batch.n_tokens = 0

    def work() -> object:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)
        for sequence in range(amount.streams):
            for position in range(amount.prompt_tokens):
                add(position, sequence, wants_logits=position == amount.prompt_tokens - 1)
                if batch.n_tokens == BATCH:
                    run()
        run()
        for step in range(amount.tokens - 1):
            for sequence in range(amount.streams):
                add(amount.prompt_tokens + step, sequence, wants_logits=True)
            run()
        return quiet  # which llama.cpp calls as long as it runs

    return work


def gemm(path: str, amount: Amount, dtype: str) -> Work:
    """The matrix products of all Linear layers of a transformers model."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(amount.threads)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    weights = {
        name: module.weight.detach()
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    prompts = amount.streams * amount.prompt_tokens
    chunks = -(-prompts // BATCH)
    body = [weight for name, weight in weights.items() if name != "lm_head"]
    prefill = _products(body, prompts // chunks)
    step = _products(list(weights.values()), amount.streams)

    def work() -> object:
        with torch.inference_mode():
            for _ in range(chunks):
                prefill()
            for _ in range(amount.tokens - 1):
                step()
        return None

    return work


def _products(weights: list[Any], rows: int) -> Work:
    """Multiplies `rows` rows by every weight, in the faster of torch's ways."""
    import torch

    inputs = {w.shape[1]: torch.randn(rows, w.shape[1], dtype=w.dtype) for w in weights}
    plain = torch.nn.functional.linear
    ways: list[Work] = [lambda: [plain(inputs[w.shape[1]], w) for w in weights]]
    onednn = torch.ops.mkldnn
    if weights[0].dtype == torch.bfloat16 and onednn._is_mkldnn_bf16_supported():
        packed = [(onednn._reorder_linear_weight(w, rows), inputs[w.shape[1]]) for w in weights]
        fused = onednn._linear_pointwise
        ways.append(lambda: [fused(x, w, None, "none", [], "") for w, x in packed])
    with torch.inference_mode():
        return min(ways, key=_seconds)


def _seconds(work: Work) -> float:
    """Wall time of the second of two runs."""
    work()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("limit", choices=["decode", "gemm"])
    parser.add_argument("model", help="GGUF file or folder")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--dtype", default="float32", help="of gemm")
    args = parser.parse_args()
    amount = Amount(args.streams, args.prompt_tokens, args.tokens, args.threads)
    if args.limit == "decode":
        work = decode(args.model, amount)
    else:
        work = gemm(args.model, amount, args.dtype)
    work()
    cpu, start = time.process_time(), time.perf_counter()
    work()
    cpu_seconds, seconds = time.process_time() - cpu, time.perf_counter() - start
    tokens = args.streams * args.tokens
    speed = {
        "tokens_per_second": round(tokens / seconds, 2),
        "tokens_per_cpu_second": round(tokens / cpu_seconds, 2),
    }
    print(json.dumps(speed))


if __name__ == "__main__":
    main()
