"""The real generator of ExLlamaV2 over the stand-in, on the demo model."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support import DEMO_MODEL

torch = pytest.importorskip("torch")


def turn(question: str, answer: str = "") -> str:
    end = "<|im_end|>\n" if answer else ""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}{end}"


# The model is sure of its answers, so that rounding does not change them.
PROMPT = turn("Count from 1 to 20.")
OTHER = turn("What is 12 + 7?")
LONG_PROMPT = turn("Count from 1 to 20.", ", ".join(map(str, range(1, 21))) + ".") * 9 + PROMPT

Generate = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def library(exllamav2_on_cpu: ModuleType) -> Iterator[ModuleType]:
    """exllamav2 with attention over pages."""
    import exllamav2.attn

    from tests.exllamav2_cpu.attention import paged_attention

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exllamav2.attn, "has_flash_attn_with_paged", True)
        patch.setattr(exllamav2.attn, "flash_attn_with_kvcache", paged_attention, raising=False)
        yield exllamav2_on_cpu


def load(library: ModuleType) -> Any:
    config = library.ExLlamaV2Config(str(DEMO_MODEL))
    config.no_sdpa = True
    config.max_seq_len = 2048
    config.max_input_len = 256
    model = library.ExLlamaV2(config)
    model.load()
    return model


@pytest.fixture(scope="module")
def model(library: ModuleType) -> Any:
    return load(library)


@pytest.fixture(scope="module")
def tokenizer(library: ModuleType, model: Any) -> Any:
    return library.ExLlamaV2Tokenizer(model.config)


@pytest.fixture
def generator(library: ModuleType, model: Any, tokenizer: Any) -> Any:
    return new_generator(library, model, tokenizer)


def new_generator(
    library: ModuleType,
    model: Any,
    tokenizer: Any,
    cache: str = "ExLlamaV2Cache",
    max_seq_len: int = 2048,
    **options: Any,
) -> Any:
    from exllamav2.generator import ExLlamaV2DynamicGenerator

    return ExLlamaV2DynamicGenerator(
        model=model,
        cache=getattr(library, cache)(model, batch_size=1, max_seq_len=max_seq_len),
        tokenizer=tokenizer,
        max_batch_size=8,
        **options,
    )


def new_job(generator: Any, prompt: str = PROMPT, tokens: int = 20, **options: Any) -> Any:
    from exllamav2.generator import ExLlamaV2DynamicJob, ExLlamaV2Sampler

    options.setdefault("gen_settings", ExLlamaV2Sampler.Settings.greedy())
    job = ExLlamaV2DynamicJob(
        input_ids=generator.tokenizer.encode(prompt, encode_special_tokens=True),
        max_new_tokens=tokens,
        **options,
    )
    generator.enqueue(job)
    return job


def run(generator: Any) -> list[dict[str, Any]]:
    results = []
    while generator.num_remaining_jobs():
        results += generator.iterate()
    return results


def token_ids(results: list[dict[str, Any]], job: Any) -> list[int]:
    return [
        token
        for result in results
        if result["job"] is job and "token_ids" in result
        for token in result["token_ids"][0].tolist()
    ]


def text(results: list[dict[str, Any]], job: Any) -> str:
    return "".join(result.get("text", "") for result in results if result["job"] is job)


def last(results: list[dict[str, Any]], job: Any) -> dict[str, Any]:
    return next(result for result in results if result["job"] is job and result["eos"])


@pytest.fixture(scope="module")
def greedy(tokenizer: Any) -> Callable[[str, int], list[int]]:
    """What transformers answers greedily."""
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32)

    @torch.inference_mode()
    def answer(prompt: str, tokens: int) -> list[int]:
        made: list[int] = []
        ids, cache = tokenizer.encode(prompt, encode_special_tokens=True), None
        for _ in range(tokens):
            output = reference(ids, past_key_values=cache, use_cache=True)
            cache, ids = output.past_key_values, output.logits[:, -1:].argmax(-1)
            made.append(ids.item())
        return made

    return answer


def test_the_rest_of_the_process_is_left_alone() -> None:
    code = """
import sys, torch
from tests.exllamav2_cpu import installed
torch.set_num_threads(3)
stream = torch.cuda.Stream
with installed() as first:
    import exllamav2.generator
with installed() as second:
    assert second is first is exllamav2
assert not [name for name in sys.modules if name.startswith("exllamav2")]
assert torch.cuda.Stream is stream
assert torch.get_num_threads() == 3
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize(
    "cache",
    ["ExLlamaV2Cache", "ExLlamaV2Cache_Q8", "ExLlamaV2Cache_Q6", "ExLlamaV2Cache_Q4"],
)
def test_greedy_tokens_are_those_of_transformers(
    library: ModuleType, model: Any, tokenizer: Any, greedy: Any, cache: str, paged: bool
) -> None:
    generator = new_generator(library, model, tokenizer, cache, paged=paged)
    job = new_job(generator)
    assert token_ids(run(generator), job) == greedy(PROMPT, 20)


@pytest.mark.parametrize("paged", [True, False])
def test_long_prompts_are_read_in_chunks_and_their_pages_are_used_again(
    library: ModuleType, model: Any, tokenizer: Any, greedy: Any, paged: bool
) -> None:
    generator = new_generator(library, model, tokenizer, paged=paged)
    expected = greedy(LONG_PROMPT, 10)
    first = new_job(generator, LONG_PROMPT, 10)
    results = run(generator)
    assert token_ids(results, first) == expected
    assert sum(result["stage"] == "prefill" for result in results) > 2
    second = new_job(generator, LONG_PROMPT, 10)
    results = run(generator)
    assert token_ids(results, second) == expected
    end = last(results, second)
    assert end["cached_pages"] + end["cached_tokens"] > 0


def test_jobs_run_together(generator: Any, greedy: Any) -> None:
    prompts = [PROMPT, OTHER, turn("Count from 5 to 15."), LONG_PROMPT]
    jobs = [new_job(generator, prompt, 12) for prompt in prompts]
    results = run(generator)
    for prompt, job in zip(prompts, jobs, strict=True):
        assert token_ids(results, job) == greedy(prompt, 12)


@pytest.mark.parametrize("speculation", ["draft", "ngram"])
def test_guessed_tokens_change_nothing(
    library: ModuleType, model: Any, tokenizer: Any, greedy: Any, speculation: str
) -> None:
    if speculation == "draft":
        draft = load(library)
        options = {
            "draft_model": draft,
            "draft_cache": library.ExLlamaV2Cache(draft, batch_size=1, max_seq_len=2048),
        }
    else:
        options = {"use_ngram_draft": True}
    generator = new_generator(library, model, tokenizer, num_draft_tokens=4, **options)
    job = new_job(generator, LONG_PROMPT, 24)
    results = run(generator)
    made = token_ids(results, job)
    assert made == greedy(LONG_PROMPT, len(made))
    assert last(results, job)["accepted_draft_tokens"] > 0


def test_a_cancelled_job_leaves_its_pages(generator: Any, greedy: Any) -> None:
    cancelled = new_job(generator, PROMPT, 500)
    other = new_job(generator, OTHER, 12)
    results = generator.iterate() + generator.iterate()
    generator.cancel(cancelled)
    results += run(generator)
    assert token_ids(results, other) == greedy(OTHER, 12)
    assert not any(result["eos"] for result in results if result["job"] is cancelled)
    assert not generator.referenced_pages


def test_stop_tokens_and_stop_strings_end_a_job(generator: Any, greedy: Any) -> None:
    expected = greedy(PROMPT, 20)
    by_token = new_job(generator, stop_conditions=[expected[7]])
    results = run(generator)
    assert last(results, by_token)["eos_reason"] == "stop_token"
    assert token_ids(results, by_token) == expected[: expected.index(expected[7])]

    whole = generator.tokenizer.decode(torch.tensor(expected))
    stop = whole[12:15]
    by_string = new_job(generator, stop_conditions=[stop])
    results = run(generator)
    assert last(results, by_string)["eos_reason"] == "stop_string"
    assert text(results, by_string) == whole[: whole.index(stop)]


def test_a_banned_string_is_taken_back(generator: Any, greedy: Any) -> None:
    whole = generator.tokenizer.decode(torch.tensor(greedy(PROMPT, 20)))
    banned = whole[8:12]
    job = new_job(generator, banned_strings=[banned])
    results = run(generator)
    assert any("suppressed_text" in result for result in results)
    assert banned not in text(results, job).lower()


def test_the_last_token_of_a_prompt_is_healed(generator: Any) -> None:
    tokenizer = generator.tokenizer
    ids = tokenizer.encode("Once upon a ti", add_bos=True)
    last_piece = tokenizer.get_id_to_piece_list()[ids[0, -1].item()]
    job = new_job(generator, "Once upon a ti", token_healing=True)
    healed = token_ids(run(generator), job)[0]
    assert tokenizer.get_id_to_piece_list()[healed].startswith(last_piece)


def test_adapters_change_the_answer(
    library: ModuleType, generator: Any, greedy: Any, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    torch.manual_seed(1)
    name = "base_model.model.model.layers.0.mlp.up_proj.lora_{}.weight"
    save_file(
        {name.format("A"): torch.randn(4, 256), name.format("B"): torch.randn(704, 4)},
        tmp_path / "adapter_model.safetensors",
    )
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8}))
    adapter = library.ExLlamaV2Lora.from_directory(generator.model, str(tmp_path))
    try:
        generator.set_loras([adapter])
        changed = new_job(generator, OTHER, 12)
        assert token_ids(run(generator), changed) != greedy(OTHER, 12)
        generator.current_loras = None  # set_loras(None) breaks the next job in 0.3.2
        plain = new_job(generator, PROMPT, 12)
        assert token_ids(run(generator), plain) == greedy(PROMPT, 12)
    finally:
        adapter.unload()


def test_a_model_is_unloaded_and_loaded_over_all_devices(library: ModuleType) -> None:
    config = library.ExLlamaV2Config(str(DEMO_MODEL))
    config.no_sdpa = True
    config.max_input_len = 256
    model = library.ExLlamaV2(config)
    cache = library.ExLlamaV2Cache(model, max_seq_len=512, lazy=True)
    steps: list[tuple[int, int]] = []
    model.load_autosplit(cache, callback=lambda done, total: steps.append((done, total)))
    assert steps[-1][0] == steps[-1][1] == len(steps) - 1
    ids = torch.tensor([[1, 2, 3]])
    assert model.forward(ids, cache).shape == (1, 3, 3104)
    model.unload()
    assert not model.modules


def test_a_function_that_is_missing_says_where(library: ModuleType) -> None:
    from exllamav2.ext import exllamav2_ext

    with pytest.raises(AttributeError, match=r"make_q_matrix is not in the stand-in"):
        exllamav2_ext.make_q_matrix()
