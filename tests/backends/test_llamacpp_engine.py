"""The llamacpp engine against transformers, alone and in batches, in both cache layouts."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from demo.to_gguf import convert
from enginebay import InvalidRequestError, Lora
from enginebay.testing import check_backend
from enginebay_llamacpp.engine import LlamaCppEngine
from tests.backends.gguf_models import write_adapter, write_llama, write_recurrent
from tests.backends.llamacpp import load, request
from tests.drafting import drafts_pay
from tests.run import Run
from tests.support import DEMO_MODEL

QUESTIONS = (
    "What is 7 + 5?",
    "hi there",
    "Tell me a story about a cat",
    "What is the capital of France?",
    "Count from 3 to 9.",
)
LAYOUTS = {
    "unified": {"kv_unified": True},
    "separate": {"kv_unified": False, "context_length": 256, "max_batch_size": 8},
    "small batches": {"kv_unified": True, "batch_tokens": 16, "ubatch_tokens": 8},
    "separate, small batches": {
        "kv_unified": False,
        "context_length": 256,
        "max_batch_size": 8,
        "batch_tokens": 16,
    },
}


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("gguf") / "demo.gguf"
    convert(DEMO_MODEL, target, "f32")
    return target


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    return [
        tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")
        for text in QUESTIONS
    ]


@pytest.fixture(scope="module")
def reference(prompts: list[list[int]]) -> list[list[int]]:
    """What transformers says, up to and with the end-of-sequence token."""
    model = LlamaForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32).eval()
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            temperature=None,
            top_p=None,
            max_new_tokens=40,
        )
        answers.append(made[0, len(prompt) :].tolist())
    return answers


@pytest.fixture(params=LAYOUTS)
def engine(gguf: Path, request: pytest.FixtureRequest) -> Iterator[LlamaCppEngine]:
    engine = load(gguf, **LAYOUTS[request.param])
    yield engine
    engine.close()


def asked(prompt: list[int], number: int = 0, **sampling: object) -> object:
    return request(prompt, id=str(number), max_tokens=40, ignore_eos=False, **sampling)


def test_greedy_equals_transformers_one_by_one(
    engine: LlamaCppEngine, prompts: list[list[int]], reference: list[list[int]]
) -> None:
    for prompt, expected in zip(prompts, reference, strict=True):
        assert Run(engine, asked(prompt)).finish().token_ids("0") == expected


def test_greedy_equals_transformers_in_a_batch_that_grows(
    engine: LlamaCppEngine, prompts: list[list[int]], reference: list[list[int]]
) -> None:
    run = Run(engine)
    for number, prompt in enumerate(prompts):
        run.add(asked(prompt, number))
        run.steps(2)
    run.finish()
    assert [run.token_ids(str(number)) for number in range(len(prompts))] == reference


def test_choices_and_a_repeated_prompt_are_prefilled_once(
    engine: LlamaCppEngine, prompts: list[list[int]], reference: list[list[int]]
) -> None:
    run = Run(engine, request(prompts[2], id="a", n=3, max_tokens=40)).finish()
    assert [run.token_ids("a", index)[:30] for index in range(3)] == [reference[2][:30]] * 3
    first = run.deltas["a", 0][0]
    assert (first.prefill_tokens, first.cached_tokens) == (len(prompts[2]), 0)
    again = Run(engine, asked(prompts[2])).finish()
    assert again.token_ids("0") == reference[2]
    first = again.deltas["0", 0][0]
    assert (first.prefill_tokens, first.cached_tokens) == (1, len(prompts[2]) - 1)


def test_an_aborted_request_leaves_the_others_alone(
    engine: LlamaCppEngine, prompts: list[list[int]], reference: list[list[int]]
) -> None:
    run = Run(engine, asked(prompts[0], 0), asked(prompts[2], 2)).steps(3)
    run.abort("0")
    run.add(asked(prompts[1], 1))
    run.finish()
    assert [run.token_ids("1"), run.token_ids("2")] == reference[1:3]


def test_prompt_lookup_changes_no_token(
    gguf: Path, prompts: list[list[int]], reference: list[list[int]]
) -> None:
    engine = load(gguf, prompt_lookup=4)
    drafts_pay(engine)
    run = Run(engine, *(asked(prompt, i) for i, prompt in enumerate(prompts[:2]))).finish()
    assert [run.token_ids("0"), run.token_ids("1")] == reference[:2]
    engine.close()


def test_a_full_cache_delays_and_fails_nobody(
    gguf: Path, prompts: list[list[int]], reference: list[list[int]]
) -> None:
    engine = load(gguf, kv_unified=True, context_length=128, cache_tokens=256)
    run = Run(engine, *(asked(prompts[i % 5], i) for i in range(12))).finish()
    assert run.errors == {}
    assert [run.token_ids(str(i)) for i in range(12)] == [reference[i % 5] for i in range(12)]
    engine.close()


def test_logprobs_are_those_of_the_raw_logits(gguf: Path, prompts: list[list[int]]) -> None:
    engine = load(gguf)
    ids = prompts[3]
    run = Run(engine, request(ids, logprobs=3, max_tokens=4, temperature=0.5, seed=1)).finish()
    sampled = run.token_ids()
    model = LlamaForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([ids + sampled])).logits[0, len(ids) - 1 : -1]
    expected = logits.double().log_softmax(-1).numpy()
    entries = [entry for delta in run.deltas["r", 0] for entry in delta.logprobs or ()]
    assert [entry.token_id for entry in entries] == sampled
    for row, entry in zip(expected, entries, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token_id], abs=0.02)
        assert [top.token_id for top in entry.top] == np.argsort(-row)[:3].tolist()
        assert entry.top[0].logprob == pytest.approx(row.max(), abs=0.02)
    engine.close()


def test_ranks_of_a_prompt_are_those_of_the_raw_logits(
    gguf: Path, prompts: list[list[int]]
) -> None:
    # FIX-14 VLLM-97
    engine = load(gguf)
    ids = prompts[3]
    run = Run(engine, request(ids, prompt_logprobs=1, max_tokens=1)).finish()
    model = LlamaForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32).eval()
    with torch.inference_mode():
        rows = model(torch.tensor([ids])).logits[0, :-1].numpy()
    nothing, *entries = run.deltas["r", 0][0].prompt_logprobs or ()
    assert nothing is None
    for row, token_id, entry in zip(rows, ids[1:], entries, strict=True):
        assert entry
        assert entry.rank
        least = 1 + (row > row[token_id] + 0.05).sum()  # apart from what rounding may swap
        assert least <= entry.rank <= (row >= row[token_id] - 0.05).sum()
    engine.close()


async def test_keeps_the_promises_of_a_backend(gguf: Path) -> None:
    await check_backend(lambda: load(gguf), prompt="<|im_start|>user\nTell me a story")


async def test_recurrent_models_keep_them_too(tmp_path: Path) -> None:
    path = write_recurrent(tmp_path / "model.gguf")
    await check_backend(lambda: load(path))


def test_recurrent_models_batch_and_continue(tmp_path: Path) -> None:
    prompts = [[5, 60, 7], list(range(40, 60)), [200, 9, 200, 9, 30]]
    engine = load(write_recurrent(tmp_path / "model.gguf"))
    alone = [Run(engine, request(prompt)).finish().token_ids() for prompt in prompts]
    engine.close()
    engine = load(write_recurrent(tmp_path / "model.gguf"))
    run = Run(engine)
    for number, prompt in enumerate(prompts):
        run.add(request(prompt, id=str(number), n=2))
        run.steps(1)
    run.finish()
    for number, expected in enumerate(alone):
        assert run.token_ids(str(number), 0) == run.token_ids(str(number), 1) == expected
    longer = Run(engine, request([*prompts[1], *alone[1], 8])).finish()
    assert longer.deltas["r", 0][0].cached_tokens >= len(prompts[1])
    engine.close()


def test_adapters_serve_side_by_side(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model.gguf")
    write_adapter(tmp_path / "lora.gguf")
    adapters = {"strong": "lora.gguf", "off": {"path": "lora.gguf", "scale": 0.0}}
    prompt = list(range(40, 60))
    plain = load(path)
    expected = Run(plain, request(prompt)).finish().token_ids()
    plain.close()
    engine = load(path, adapters=adapters)
    assert engine.info.adapters == ("strong", "off")
    run = Run(engine)
    for name in (None, "strong", "off"):
        run.add(request(prompt, id=str(name), adapter=name))
    run.finish()
    assert run.token_ids("None") == run.token_ids("off") == expected
    assert run.token_ids("strong") != expected
    engine.close()


def test_adapters_come_and_go_while_it_runs(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model.gguf")
    whole = Lora(str(write_adapter(tmp_path / "lora.gguf")))
    half = Lora(whole.path, 0.5)
    prompt = list(range(40, 60))
    engine = load(path)
    run = Run(engine, request(prompt, id="early")).steps(2)
    engine.load_adapter("whole", [whole])
    engine.load_adapter("halves", [half, half])
    engine.load_adapter("half", [half])
    for name in (None, "whole", "halves", "half"):
        run.add(request(prompt, id=str(name), adapter=name))
    run.finish()
    assert run.token_ids("early") == run.token_ids("None")
    assert run.token_ids("whole") == run.token_ids("halves")
    assert len({tuple(run.token_ids(name)) for name in ("None", "whole", "half")}) == 3
    engine.unload_adapter("half")  # the one that was applied last
    engine.unload_adapter("whole")
    assert engine.info.adapters == ("halves",)
    for number in range(3):
        engine.load_adapter(f"again {number}", [whole])
        again = Run(engine, request(prompt, id="a", adapter=f"again {number}")).finish()
        assert again.token_ids("a") == run.token_ids("whole")
        engine.unload_adapter(f"again {number}")
        late = Run(engine, request(prompt, id="late")).finish()
        assert late.token_ids("late") == run.token_ids("None")
    engine.close()


def test_an_adapter_that_does_not_fit_is_refused_while_it_runs(tmp_path: Path) -> None:
    engine = load(write_llama(tmp_path / "model.gguf"))
    good = Lora(str(write_adapter(tmp_path / "good.gguf")))
    wide = Lora(str(write_adapter(tmp_path / "wide.gguf", width=32)))
    run = Run(engine, request([5, 60, 7])).steps(2)
    for loras, message in (
        ([good, wide], r"wide\.gguf: llama\.cpp cannot use it .* must be made for this model"),
        ([Lora(str(tmp_path / "missing.gguf"))], "there is no such file"),
        ([Lora(str(tmp_path / "model.gguf"))], "cannot use it as LoRA adapter"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            engine.load_adapter("bad", loras)
    assert engine.info.adapters == ()
    assert run.finish().errors == {}
    engine.close()


def test_a_draft_model_changes_no_token_and_saves_steps(
    gguf: Path, prompts: list[list[int]], reference: list[list[int]]
) -> None:
    # ENG-7
    engine = load(gguf, draft_model=str(gguf), draft_tokens=3)  # it guesses right, nearly always
    drafts_pay(engine)
    run = Run(engine)
    for number, prompt in enumerate(prompts[:3]):
        run.add(asked(prompt, number))
        run.steps(2)
    steps = 0
    while not all(run.is_finished(str(number)) for number in range(3)):
        run.steps(1)
        steps += 1
    assert [run.token_ids(str(number)) for number in range(3)] == reference[:3]
    assert steps < max(map(len, reference[:3])) / 2
    again = Run(engine, asked(prompts[2], 0, n=2)).finish()
    assert again.token_ids("0", 0) == again.token_ids("0", 1)
    assert Run(engine, *(asked(prompts[i], i) for i in range(5))).finish().errors == {}
    engine.close()


def test_a_draft_model_that_guesses_wrong_costs_nothing_else(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model.gguf")
    other = write_llama(tmp_path / "other.gguf", seed=9)
    prompts = [[5, 60, 7], list(range(40, 60)), [200, 9, 200, 9, 30]]
    engine = load(path)
    alone = [Run(engine, request(prompt)).finish().token_ids() for prompt in prompts]
    engine.close()
    engine = load(path, draft_model=str(other))
    drafts_pay(engine)
    run = Run(engine, *(request(prompt, id=str(i)) for i, prompt in enumerate(prompts))).finish()
    assert [run.token_ids(str(i)) for i in range(3)] == alone
    engine.close()
