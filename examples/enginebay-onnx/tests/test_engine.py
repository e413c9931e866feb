"""The engine against the contract, and against what transformers makes of the same weights."""

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from enginebay_onnx import Options, register_backends
from enginebay_onnx.convert import convert

from enginebay import (
    BackendRegister,
    BackendSettings,
    BackendUnavailableError,
    ContextLengthExceededError,
    Delta,
    Engine,
    GenerationRequest,
    InvalidRequestError,
    SamplingParams,
)
from enginebay.testing import check_backend

Make = Callable[..., Engine]
STORY = "<|im_start|>user\nTell me a story about a train.<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = (
    STORY,
    "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is 7 + 5?<|im_end|>\n<|im_start|>assistant\n",
    "h",
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)


def request(engine: Engine, prompt: str, sampling: SamplingParams, **more: object) -> str:
    """Add a request; its id."""
    token_ids = tuple(engine.tokenize(prompt, add_special_tokens=False))
    name = f"{len(prompt)}/{sampling.seed}/{more}"
    engine.add_request(
        GenerationRequest(
            request_id=name,
            prompt_token_ids=token_ids,
            sampling=sampling,
            **more,  # type: ignore[arg-type]
        )
    )
    return name


def run(engine: Engine, unfinished: int) -> dict[tuple[str, int], list[Delta]]:
    """Step until so many choices have ended; their deltas."""
    found: dict[tuple[str, int], list[Delta]] = {}
    while unfinished:
        for name, delta in engine.step():
            assert isinstance(delta, Delta)
            found.setdefault((name, delta.index), []).append(delta)
            unfinished -= delta.finish_reason is not None
    return found


def tokens(deltas: Iterable[Delta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


async def test_keeps_the_promises(engine: Make) -> None:
    await check_backend(engine, prompt=STORY)


async def test_the_backend_that_is_registered_keeps_them(demo: Path, folder: Path) -> None:
    """In a process of its own; three choices are the most at once, so that some have to wait."""
    register = BackendRegister()
    register_backends(register)
    assert register["onnx"].serves is not None
    assert (register["onnx"].serves(folder), register["onnx"].serves(demo)) == (True, False)
    options = Options(threads=1, max_batch_size=3, context_length=2048)
    settings = BackendSettings(name="m", path=str(folder), options=options)
    await check_backend(lambda: register["onnx"].create(settings), prompt=STORY)


def test_says_what_transformers_says(demo: Path, engine: Make) -> None:
    """Greedy tokens and their logprobs, decoded together by this engine and alone by the other."""
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(demo, dtype=torch.float32).eval()
    ours = engine()
    names = [request(ours, prompt, replace(GREEDY, logprobs=0)) for prompt in PROMPTS]
    found = run(ours, len(PROMPTS))
    for name, prompt in zip(names, PROMPTS, strict=True):
        deltas = found[name, 0]
        prompt_ids = ours.tokenize(prompt, add_special_tokens=False)
        said = tokens(deltas)
        with torch.inference_mode():
            logits = reference(torch.tensor([[*prompt_ids, *said]])).logits[0]
        logits = logits[len(prompt_ids) - 1 :]
        assert said == logits[:-1].argmax(-1).tolist()
        logprobs = [entry.logprob for delta in deltas for entry in delta.logprobs or ()]
        expected = logits.log_softmax(-1)[range(len(logprobs)), said[: len(logprobs)]]
        np.testing.assert_allclose(logprobs, expected, atol=1e-3)
        assert "".join(delta.text for delta in deltas) == ours.detokenize(said[: len(logprobs)])


def test_company_changes_nothing(engine: Make) -> None:
    """Choices that come and go beside a seeded one: rows move, prompts come in pieces."""
    sampling = SamplingParams(seed=7, max_tokens=60, ignore_eos=True)
    alone = engine()
    name = request(alone, STORY, sampling, n=2)
    expected = run(alone, 2)
    together = engine(max_batch_size=5)
    for count, prompt in enumerate(("a", PROMPTS[1], "one two three " * 100)):
        request(together, prompt, replace(GREEDY, max_tokens=7 * count + 1))
    request(together, STORY, sampling, n=2)
    request(together, PROMPTS[2] * 3, replace(GREEDY, ignore_eos=True, max_tokens=30), n=3)
    found = run(together, 8)
    for index in range(2):
        assert tokens(found[name, index]) == tokens(expected[name, index])
    assert tokens(found[name, 0]) != tokens(found[name, 1])


def test_streams_go_on_while_a_prompt_is_prefilled(engine: Make) -> None:
    ours = engine()
    name = request(ours, STORY, replace(GREEDY, ignore_eos=True, max_tokens=500))
    list(ours.step())
    request(ours, "one two three " * 200, GREEDY)
    for _ in range(2):
        assert [who for who, _ in ours.step()] == [name]


def test_a_prompt_that_begins_like_the_last_one_is_not_computed_again(engine: Make) -> None:
    ours = engine()
    prompts = (STORY, STORY + "Once upon a time", STORY[:-2] + "!", STORY)
    firsts = []
    for number, prompt in enumerate(prompts):
        name = request(ours, prompt, replace(GREEDY, seed=number))
        deltas = run(ours, 1)[name, 0]
        fresh = engine()
        request(fresh, prompt, GREEDY)
        assert tokens(deltas) == tokens(next(iter(run(fresh, 1).values())))
        length = len(ours.tokenize(prompt, add_special_tokens=False))
        assert deltas[0].prefill_tokens + deltas[0].cached_tokens == length
        firsts.append(deltas[0].cached_tokens)
    assert firsts[0] == 0
    assert all(firsts[1:])
    name = request(ours, STORY, GREEDY, cache_salt="mine")
    assert run(ours, 1)[name, 0][0].cached_tokens == 0


def test_abort_at_any_time(engine: Make) -> None:
    """Waiting, in the middle of a prompt, decoding; what is left goes on undisturbed."""
    ours = engine(max_batch_size=2)
    kept = request(ours, STORY, GREEDY)
    list(ours.step())
    decoding = request(ours, "a", GREEDY)
    list(ours.step())
    waiting = request(ours, "one two three " * 300, GREEDY)
    assert {who for who, _ in ours.step()} == {kept, decoding}
    ours.abort_request(decoding)
    list(ours.step())
    ours.abort_request(waiting)
    found = run(ours, 1)
    assert {who for who, _ in found} == {kept}
    fresh = engine()
    request(fresh, STORY, GREEDY)
    everything = tokens(next(iter(run(fresh, 1).values())))
    assert everything[-len(tokens(found[kept, 0])) :] == tokens(found[kept, 0])


def test_lower_numbers_go_first(engine: Make) -> None:
    ours = engine(max_batch_size=1)
    order = [request(ours, "h" * (1 + p), GREEDY, priority=p) for p in (2, 0, 1)]
    ended = []
    while len(ended) < 3:
        ended += [who for who, delta in ours.step() if delta.finish_reason]  # type: ignore[union-attr]
    assert ended == [order[1], order[2], order[0]]


@pytest.mark.parametrize(
    ("prompt", "params", "more", "param"),
    [
        ((), {}, {}, "prompt"),
        ((5000,), {}, {}, "prompt"),
        ((1,), {"logit_bias": {-1: 1.0}}, {}, "logit_bias"),
        ((1,), {"stop_token_ids": (5000,)}, {}, "stop_token_ids"),
        ((1,), {"allowed_token_ids": (5000,)}, {}, "allowed_token_ids"),
        ((1,), {"repetition_penalty": 0.0}, {}, "repetition_penalty"),
        ((1,), {}, {"n": 0}, "n"),
    ],
)
def test_bad_requests_are_refused(
    engine: Make, prompt: tuple[int, ...], params: dict, more: dict, param: str
) -> None:
    bad = GenerationRequest(
        request_id="bad", prompt_token_ids=prompt, sampling=SamplingParams(**params), **more
    )
    with pytest.raises(InvalidRequestError) as refused:
        engine().add_request(bad)
    assert refused.value.param == param


def test_the_context_can_be_shorter_than_the_models(engine: Make, folder: Path) -> None:
    ours = engine(context_length=20)
    name = request(ours, "h", replace(GREEDY, max_tokens=None, ignore_eos=True))
    last = run(ours, 1)[name, 0][-1]
    assert last.finish_reason == "length"
    with pytest.raises(ContextLengthExceededError):
        request(ours, "h" * 40, GREEDY)
    with pytest.raises(BackendUnavailableError, match="more than the 4096 tokens"):
        engine(context_length=5000)


def test_what_is_wrong_with_a_folder_is_said(demo: Path, folder: Path, tmp_path: Path) -> None:
    from enginebay_onnx.loading import load_engine

    def load(path: Path) -> None:
        load_engine(str(path), Options(), lambda stage, fraction: None)

    with pytest.raises(BackendUnavailableError, match=r"enginebay_onnx\.convert SOURCE TARGET"):
        load(demo)
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    described = json.loads((broken / "genai_config.json").read_text(encoding="utf-8"))
    described["model"]["decoder"]["head_size"] = 7
    (broken / "genai_config.json").write_text(json.dumps(described), encoding="utf-8")
    with pytest.raises(BackendUnavailableError, match="no plain decoder"):
        load(broken)
    (broken / "model.onnx").write_bytes(b"no model")
    with pytest.raises(BackendUnavailableError, match="ONNX Runtime says"):
        load(broken)
    (broken / "generation_config.json").write_text("[", encoding="utf-8")
    with pytest.raises(BackendUnavailableError, match=r"generation_config\.json is damaged"):
        load(broken)
    (broken / "tokenizer.json").unlink()
    with pytest.raises(BackendUnavailableError, match="cannot be read"):
        load(broken)


def test_what_cannot_be_converted_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no config\.json"):
        convert(tmp_path, tmp_path / "target", "fp32")


def test_four_bits_are_enough_to_know_its_name(demo: Path, tmp_path: Path) -> None:
    from enginebay_onnx.loading import load_engine

    convert(demo, tmp_path / "int4", "int4")
    ours = load_engine(str(tmp_path / "int4"), Options(threads=1), lambda stage, fraction: None)
    name = request(ours, PROMPTS[1], GREEDY)
    assert "Enginebay" in "".join(delta.text for delta in run(ours, 1)[name, 0])
