"""What ExLlamaV2 has beside plain decoding: drafts, adapters, one job at a time, bans, healing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

from enginebay import Lora, ServingError
from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.grammar import Pattern
from tests.backends.exllamav2_loading import LoadExLlamaV2
from tests.backends.exllamav2_loading import load_exllamav2 as load_exllamav2
from tests.backends.test_exllamav2_engine import TEXTS, assert_empty
from tests.run import Run, request
from tests.support import DEMO_MODEL

HOT: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 20}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    return [tokenizer.encode(text) for text in TEXTS]


@pytest.fixture(scope="module")
def plain(load_exllamav2: LoadExLlamaV2) -> Any:
    return load_exllamav2(DEMO_MODEL)


def ask(engine: Any, *items: Any) -> list[list[int]]:
    run = Run(engine, *items).finish()
    assert_empty(engine)
    return [run.token_ids(item.request_id) for item in items]


# Guessed tokens and one job at a time change nothing.


@pytest.mark.parametrize(
    "options",
    [{"prompt_lookup": 3}, {"draft_model": str(DEMO_MODEL), "draft_tokens": 3}, {"paged": False}],
    ids=str,
)
def test_other_ways_of_running_say_the_same(
    load_exllamav2: LoadExLlamaV2, plain: Any, prompts: list[list[int]], options: dict[str, Any]
) -> None:
    engine = load_exllamav2(DEMO_MODEL, **options)
    items = [request(p, id=str(i), max_tokens=20) for i, p in enumerate(prompts)]
    items += [
        request(prompts[0], id="hot", **HOT),
        request(prompts[0], id="date", constraint=Pattern("[0-9]{4}-[0-9]{2}"), **HOT),
        request(prompts[2], id="stop", stop=("weather",), max_tokens=40),
        request(prompts[1], id="repeats", logit_bias={400: 100.0}, max_tokens=20),
    ]
    expected = ask(plain, *items)
    assert ask(engine, *items) == expected
    run = Run(engine, request(prompts[0], n=3, **HOT)).steps(2)
    run.abort("r")
    assert_empty(engine)
    longest = Run(engine, request(prompts[0], max_tokens=None, stop_token_ids=())).steps(3)
    assert engine.info.context_length == 2048
    longest.abort("r")


def test_nothing_is_guessed_from_very_short_prompts(
    load_exllamav2: LoadExLlamaV2, plain: Any
) -> None:
    engine = load_exllamav2(DEMO_MODEL, prompt_lookup=3)
    items = [request([77, 78, 79][:length], id=str(length)) for length in (1, 2, 3)]
    assert ask(engine, *items) == ask(plain, *items)


def test_banned_strings_go_with_no_guesses(
    load_exllamav2: LoadExLlamaV2, plain: Any, prompts: list[list[int]]
) -> None:
    engine = load_exllamav2(DEMO_MODEL, prompt_lookup=3)
    assert "banned_strings" in engine.info.unsupported
    free = request(prompts[2], max_tokens=15)
    said = Run(plain, free).finish()
    sampling = replace(free.sampling, banned_strings=(said.text()[:5],))
    assert ask(engine, replace(free, sampling=sampling)) == [said.token_ids()]


def test_one_job_keeps_to_its_salt(load_exllamav2: LoadExLlamaV2, prompts: list[list[int]]) -> None:
    engine = load_exllamav2(DEMO_MODEL, paged=False)
    cached = []
    for salt in (None, None, "a", "a", None):
        run = Run(engine, replace(request(prompts[0]), cache_salt=salt)).finish()
        cached.append(run.deltas["r", 0][0].cached_tokens)
    assert cached == [0, len(prompts[0]) - 1, 0, len(prompts[0]) - 1, 0]


# Adapters.


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two that change what is said, without near ties between tokens."""
    paths = {}
    for name, number in zip(("one", "two"), (11, 25), strict=True):
        folder = tmp_path_factory.mktemp(name)
        config = {"peft_type": "LORA", "r": 4, "lora_alpha": 64, "target_modules": ["q_proj"]}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        generator = torch.Generator().manual_seed(number)
        save_file(
            {
                f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight": (
                    torch.randn(shape, generator=generator) * 0.15
                ).half()
                for layer in range(5)
                for part, shape in (("A", (4, 256)), ("B", (256, 4)))
            },
            folder / "adapter_model.safetensors",
        )
        paths[name] = str(folder)
    return paths


@pytest.mark.thorough
def test_adapters_take_turns_and_share_nothing(
    load_exllamav2: LoadExLlamaV2, adapters: dict[str, str], prompts: list[list[int]]
) -> None:
    engine = load_exllamav2(DEMO_MODEL, adapters=adapters)
    prompt = prompts[0] * 20
    items = [
        replace(request(prompt, id=f"{name} {i}", max_tokens=70 - i), adapter=name)
        for i in range(2)
        for name in (None, "one", "two")
    ]
    alone = [ask(engine, item)[0] for item in items]
    assert len({tuple(token_ids[:60]) for token_ids in alone}) == 3
    run = Run(engine, *items).steps(220)  # three turns: everyone has had one
    assert all(run.deltas[item.request_id, 0] for item in items)
    run.finish()
    for item, token_ids in zip(items, alone, strict=True):
        assert run.token_ids(item.request_id) == token_ids, item.request_id
    other = Run(engine, replace(request([99, *prompt]), adapter="one")).finish()
    assert other.deltas["r", 0][0].cached_tokens == 0


def test_adapters_come_and_go_while_it_runs(
    load_exllamav2: LoadExLlamaV2,
    adapters: dict[str, str],
    prompts: list[list[int]],
    tmp_path: Path,
) -> None:
    engine = load_exllamav2(DEMO_MODEL, adapters={})
    item = request(prompts[0], id="r", max_tokens=20)
    early = Run(engine, replace(item, request_id="early")).steps(3)
    engine.load_adapter("one", [Lora(adapters["one"])])
    engine.load_adapter("halves", [Lora(adapters["one"], 0.5), Lora(adapters["one"], 0.5)])
    engine.load_adapter("sum", [Lora(adapters["one"]), Lora(adapters["two"])])
    assert engine.info.adapters == ("one", "halves", "sum")
    plain = early.finish().token_ids("early")
    said = {
        name: ask(engine, replace(item, request_id=name, adapter=name))[0]
        for name in engine.info.adapters
    }
    assert said["one"] == said["halves"]
    assert len({tuple(tokens) for tokens in (plain, said["one"], said["sum"])}) == 3
    for name in ("sum", "one", "unknown"):
        engine.unload_adapter(name)
    assert engine.info.adapters == ("halves",)
    assert ask(engine, item) == [plain]
    assert ask(engine, replace(item, adapter="halves")) == [said["one"]]
    with pytest.raises(InvalidRequestError, match="no adapter 'one'"):
        engine.add_request(replace(item, adapter="one"))
    layer = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight".format
    good = {layer(0, "A"): torch.ones(4, 256), layer(0, "B"): torch.ones(256, 4)}
    file = tmp_path / "adapter_model.safetensors"
    (tmp_path / "adapter_config.json").write_text(
        Path(adapters["one"], "adapter_config.json").read_text()
    )
    for tensors, message in (
        (good | {layer(0, "B"): torch.ones(256, 8)}, "has no lora_B of rank 4"),
        (good | {layer(1, "B"): torch.ones(256, 4)}, "has no lora_A"),
        (good | {layer(9, "A"): torch.ones(4, 256)}, "made for another"),
        (good | {layer(1, "A"): torch.ones(4, 255)}, "incompatible tensor shape"),
    ):
        save_file({key: tensor.half() for key, tensor in tensors.items()}, file)
        with pytest.raises(InvalidRequestError, match=message):
            engine.load_adapter("bad", [Lora(adapters["two"]), Lora(str(tmp_path))])
        linear = engine._model.model.modules_dict["model.layers.0.self_attn.q_proj"]
        assert len(linear.lora_a_tensors) == len(linear.lora_b_tensors) == 2  # of "halves"
    assert ask(engine, item) == [plain]
    engine.close()


# Banned strings.


def test_banned_strings(plain: Any, prompts: list[list[int]]) -> None:
    said = Run(plain, request(prompts[2], max_tokens=30)).finish().text()
    for banned in (said[:1], said[2:6], said[5:15], said[:12].upper()):
        item = request(prompts[2], max_tokens=30, banned_strings=(banned,), logprobs=1)
        run = Run(plain, item, request(prompts[0], id="company", **HOT)).finish()
        assert banned.lower() not in run.text().lower()
        assert run.last().finish_reason == "length"
        assert len(run.token_ids()) == 30
        assert plain.detokenize(run.token_ids()).replace("<|im_end|>", "") == run.text()
        entries = [e.token_id for d in run.deltas["r", 0] for e in d.logprobs or ()]
        assert entries == run.token_ids()  # REAL-5
    assert_empty(plain)


def test_a_ban_that_is_only_begun_changes_nothing(plain: Any, prompts: list[list[int]]) -> None:
    free = Run(plain, request(prompts[2], ignore_eos=False, max_tokens=60)).finish()
    text = free.text()
    banned = tuple(text[start : start + 8] + "\0" for start in range(0, len(text), 3))
    item = request(prompts[2], ignore_eos=False, max_tokens=60, banned_strings=banned)
    run = Run(plain, item).finish()
    assert (run.text(), run.token_ids()) == (text, free.token_ids())
    assert run.last().finish_reason == free.last().finish_reason


def test_bans_that_leave_nothing_end_their_request(plain: Any, prompts: list[list[int]]) -> None:
    allowed = Run(plain, request(prompts[2], max_tokens=2)).finish().token_ids()[:1]
    text = plain.detokenize(allowed)
    item = request(
        prompts[2], allowed_token_ids=tuple(allowed), banned_strings=(text,), max_tokens=5
    )
    run = Run(plain, item, request(prompts[0], id="other")).finish()
    assert isinstance(run.errors["r"], ServingError)
    assert run.last("other").finish_reason
    assert_empty(plain)


def test_bans_and_grammars_exclude_each_other(plain: Any, prompts: list[list[int]]) -> None:
    with pytest.raises(InvalidRequestError, match="banned_strings") as caught:
        Run(plain, request(prompts[0], banned_strings=("a",), constraint=Pattern("a")))
    assert caught.value.param == "banned_strings"


# Token healing.


def test_healing_finishes_a_token(plain: Any) -> None:
    text = TEXTS[2].split("weather")[0] + "weath"
    prompt = plain.tokenize(text, add_special_tokens=False)
    run = Run(plain, request(prompt, token_healing=True, max_tokens=3, logprobs=1)).finish()
    whole = plain.detokenize(prompt[:-1]) + plain.detokenize(run.token_ids())
    assert whole == text + run.text()
    assert len(run.token_ids()) == 3
    first = run.deltas["r", 0][0]
    assert first.prefill_tokens + first.cached_tokens == len(prompt)
    last = plain.detokenize(prompt[-1:])
    assert plain.detokenize(run.token_ids()[:1]).startswith(last)
    assert_empty(plain)


def test_a_special_token_is_not_healed(plain: Any, prompts: list[list[int]]) -> None:
    prompt = prompts[0][:-1]  # ends with <|im_start|>assistant
    prompt = prompt[: prompt.index(2) + 1]  # ends with <|im_end|>
    [healed, plainly] = ask(plain, request(prompt, token_healing=True), request(prompt, id="plain"))
    assert healed == plainly


# Failures.


class Failing:
    """The model's forward pass, which fails while `fails` says so of a batch of prompts."""

    def __init__(self, engine: Any, monkeypatch: pytest.MonkeyPatch, fails: Any) -> None:
        self._forward = engine._model.model.forward_chunk
        self._fails = fails
        self._engine = engine
        monkeypatch.setattr(engine._model.model, "forward_chunk", self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        running = [c.request.request_id for c in self._engine._scheduler.running]
        if self._fails(running):
            raise RuntimeError("out of everything")
        return self._forward(*args, **kwargs)


def test_the_guilty_one_fails_alone(
    plain: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ask(plain, *(request(p, id=str(i)) for i, p in enumerate(prompts)))
    run = Run(plain, *(request(p, id=str(i)) for i, p in enumerate(prompts))).steps(4)
    Failing(plain, monkeypatch, lambda running: "1" in running)
    run.finish()
    assert "out of everything" in run.errors["1"].message
    assert [run.token_ids(id) for id in ("0", "2")] == [expected[0], expected[2]]
    assert_empty(plain)


def test_a_batch_too_large_is_halved(
    load_exllamav2: LoadExLlamaV2, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load_exllamav2(DEMO_MODEL)
    items = [request(prompts[i % 3], id=str(i)) for i in range(4)]
    expected = [ask(engine, item)[0] for item in items]
    Failing(engine, monkeypatch, lambda running: len(running) > 2)
    assert ask(engine, *items) == expected
    assert engine._scheduler._max_running == 2


def test_a_model_that_can_do_nothing_any_more_is_dead(
    load_exllamav2: LoadExLlamaV2, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load_exllamav2(DEMO_MODEL)
    run = Run(engine, request(prompts[0])).steps(2)
    Failing(engine, monkeypatch, lambda running: True)
    with pytest.raises(RuntimeError, match="out of everything"):
        run.steps(3)


@pytest.mark.parametrize("n", [1, 4])  # alone, and on the library's sampling threads
def test_logits_that_are_no_numbers_end_their_request(
    plain: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    run = Run(plain, request(prompts[0], n=n), request(prompts[1], id="other")).steps(3)
    [sick, *_] = plain._requests["r"]
    monkeypatch.setattr(
        type(sick.sampler), "sample", _nan_for(sick.sampler, type(sick.sampler).sample)
    )
    run.finish()
    assert "not numbers" in run.errors["r"].message
    assert run.last("other").finish_reason == "length"
    assert_empty(plain)


def _nan_for(sick: Any, sample: Any) -> Any:
    return lambda self, row, *rest: sample(self, row * float("nan") if self is sick else row, *rest)


def test_a_mask_that_cannot_be_filled_ends_its_request(
    plain: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    date = {"constraint": Pattern("[0-9]{40}"), **HOT}
    expected = ask(plain, request(prompts[1], id="other", **date))
    run = Run(plain, request(prompts[0], **date), request(prompts[1], id="other", **date)).steps(5)
    sick = plain._requests["r"][0].completion.constraint.matcher
    fill = plain._compiler.fill

    def fail(matchers: list[Any]) -> Any:
        if sick in matchers:
            raise RuntimeError("no mask")
        return fill(matchers)

    monkeypatch.setattr(plain._compiler, "fill", fail)
    run.finish()
    assert "no mask" in run.errors["r"].message
    assert run.token_ids("other") == expected[0]
    assert_empty(plain)


def test_allowed_tokens_that_only_end_are_refused(plain: Any, prompts: list[list[int]]) -> None:
    with pytest.raises(InvalidRequestError, match="min_tokens"):
        Run(plain, request(prompts[0], ignore_eos=False, allowed_token_ids=(2,), min_tokens=1))
