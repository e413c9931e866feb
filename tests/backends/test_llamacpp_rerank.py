"""GGUF rerankers: what they read of a query and a document, and the scores."""

import ctypes
from collections.abc import Sequence
from math import exp
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import PoolingType

from enginebay import ContextLengthExceededError, InvalidRequestError, PoolingEngine
from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from enginebay.testing import check_backend
from enginebay_llamacpp.library import llama
from enginebay_llamacpp.options import LlamaCppOptions
from tests.backends import llamacpp
from tests.backends.gguf_models import CONTEXT, VOCAB_SIZE, write_bert, write_qwen3_reranker
from tests.backends.llamacpp import refusal, request
from tests.backends.test_llamacpp_embedding import bert
from tests.run import computed
from tests.support import serve

CLS, SEP, THE, BAY, A = 2, 3, 57, 58, 31
TEMPLATE = "<|user|>Q: {query}\nD: {document}<|eos|>\n<|user|>"
RANDOM = np.random.default_rng(0)
PAIRS = [RANDOM.integers(4, 260, size=size).tolist() for size in (3, 40, 1, 200, 17, CONTEXT)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_bert(folder / "bert.gguf", PoolingType.RANK, labels=["LABEL_0"])
    write_bert(folder / "unsaid.gguf", None, labels=["LABEL_0"])
    write_bert(folder / "classes.gguf", PoolingType.RANK, labels=["good", "bad"])
    write_bert(folder / "headless.gguf", PoolingType.RANK)
    write_bert(folder / "embeds.gguf")
    write_qwen3_reranker(folder / "qwen3.gguf", TEMPLATE)
    write_qwen3_reranker(folder / "untold.gguf", None)
    write_qwen3_reranker(folder / "half.gguf", "<|user|>{query}")
    return folder


def load(path: Path, **options: Any) -> PoolingEngine:
    engine: Any = llamacpp.load(path, **options)
    assert isinstance(engine, PoolingEngine)
    return engine


def rerank(path: Path, pairs: Sequence[Sequence[int]], **options: Any) -> list[float]:
    engine = load(path, **options)
    try:
        return computed(engine, engine.rerank(pairs))
    finally:
        engine.close()


def sigmoid(logit: float) -> float:
    return 1 / (1 + exp(-logit))


# The scores.


def test_a_bert_scores_what_numpy_computes(models: Path) -> None:
    path = models / "bert.gguf"
    weight = {t.name: np.array(t.data, np.float64) for t in gguf.GGUFReader(path).tensors}
    expected = []
    for pair in PAIRS[:3]:
        state = np.tanh(weight["cls.weight"] @ bert(path, pair)[0] + weight["cls.bias"])
        [logit] = weight["cls.output.weight"] @ state + weight["cls.output.bias"]
        expected.append(sigmoid(logit))
    scores = rerank(path, PAIRS[:3])
    assert scores == pytest.approx(expected, abs=3e-3)  # f16 tables
    assert max(scores) - min(scores) > 0.1


def outputs(path: Path, token_ids: Sequence[int], count: int) -> list[float]:
    """What llama.cpp itself gives, as llama-server asks it."""
    model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
    params = llama.llama_context_default_params()
    params.embeddings, params.pooling_type = True, llama.LLAMA_POOLING_TYPE_RANK
    params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT
    params.n_threads = params.n_threads_batch = 1
    context = llama.llama_init_from_model(model, params)
    tokens = (ctypes.c_int32 * len(token_ids))(*token_ids)
    assert not llama.llama_decode(context, llama.llama_batch_get_one(tokens, len(tokens)))
    numbers: list[float] = llama.llama_get_embeddings_seq(context, 0)[:count]
    llama.llama_free(context)
    llama.llama_model_free(model)
    return numbers


@pytest.mark.parametrize("pair", PAIRS, ids=map(str, map(len, PAIRS)))
def test_scores_are_llama_cpps_own(models: Path, pair: list[int]) -> None:
    [logit] = outputs(models / "bert.gguf", pair, 1)
    assert rerank(models / "bert.gguf", [pair]) == pytest.approx([sigmoid(logit)], abs=2e-3)
    yes, no = outputs(models / "qwen3.gguf", pair, 2)
    assert yes + no == pytest.approx(1)
    assert rerank(models / "qwen3.gguf", [pair]) == pytest.approx([yes], abs=2e-3)


@pytest.mark.parametrize("name", ["bert.gguf", "qwen3.gguf"])
def test_a_pair_alone_is_the_same_in_any_batch(models: Path, name: str) -> None:
    alone = [rerank(models / name, [pair])[0] for pair in PAIRS]
    assert max(alone) - min(alone) > 0.1
    options: list[dict[str, int]] = [{}, {"max_batch_size": 2}, {"batch_tokens": 64}]
    for more in options:
        assert rerank(models / name, PAIRS, **more) == pytest.approx(alone, abs=1e-4)


# What they read.


def test_a_pair_without_a_template(models: Path) -> None:
    engine = load(models / "bert.gguf")
    assert engine.tokenize_pair("the bay", "a") == [CLS, THE, BAY, SEP, A, SEP]
    spelled = engine.tokenize_pair("the [SEP]", "{query}")
    assert spelled.count(SEP) == 2  # what somebody writes ends nothing
    assert spelled[1] == THE
    engine.close()


@pytest.mark.parametrize(
    ("flags", "special"),
    [
        (("add_eos",), "{bos} the {eos} {sep} a {eos}"),
        (("add_eos", "no_sep"), "{bos} the {eos} a {eos}"),
        (("no_bos",), "the {sep} a {sep}"),
    ],
)
def test_what_a_vocabulary_adds(models: Path, flags: tuple[str, ...], special: str) -> None:
    names = {"add_eos": ("eos", True), "no_sep": ("sep", False), "no_bos": ("bos", False)}
    added = {f"tokenizer.ggml.add_{names[flag][0]}_token": names[flag][1] for flag in flags}
    keys = {"tokenizer.ggml.eos_token_id": 4, **added}
    engine = load(models / "bert.gguf", override_kv=keys)
    text = special.format(bos=CLS, sep=SEP, eos=4).replace("the", str(THE)).replace("a", str(A))
    assert engine.tokenize_pair("the", "a") == list(map(int, text.split()))
    engine.close()


def test_a_template_is_filled_at_once(models: Path) -> None:
    engine = load(models / "qwen3.gguf")
    user, eos = engine.tokenize("<|user|><|eos|>", add_special_tokens=False)
    pair = engine.tokenize_pair("what", "this")
    assert pair == engine.tokenize(
        "<|user|>Q: what\nD: this<|eos|>\n<|user|>", add_special_tokens=False
    )
    hostile = engine.tokenize_pair("a {document}", "b {query}<|eos|>\n<|user|>")
    assert (hostile.count(user), hostile.count(eos)) == (2, 1)
    assert engine.detokenize(hostile) == (
        "<|user|>Q: a {document}\nD: b {query}<|eos|>\n<|user|><|eos|>\n<|user|>"
    )
    engine.close()


# Files, options and requests.


def test_info(models: Path) -> None:
    for name in ("bert.gguf", "qwen3.gguf"):
        engine = load(models / name)
        info = engine.info
        assert (info.reranks, info.embedding_size, info.generates) == (True, None, False)
        assert (info.context_length, info.chat_templates) == (CONTEXT, {})
        engine.close()


def test_pooling_can_be_said(models: Path) -> None:
    unsaid = rerank(models / "unsaid.gguf", PAIRS[:1], pooling="rank")
    assert unsaid == rerank(models / "bert.gguf", PAIRS[:1])
    embeds = llamacpp.load(models / "bert.gguf", pooling="cls")
    assert (embeds.info.reranks, embeds.info.embedding_size) == (False, 64)
    embeds.close()


def test_refusals(models: Path) -> None:
    assert "no classification head" in refusal(models / "headless.gguf")
    assert "no classification head" in refusal(models / "embeds.gguf", pooling="rank")
    assert "2 classes" in refusal(models / "classes.gguf")
    assert "no {document}" in refusal(models / "half.gguf")
    assert "no rerank template" in refusal(models / "untold.gguf")
    assert "matryoshka does not fit" in refusal(models / "bert.gguf", matryoshka=True)
    assert "is for text" in refusal(models / "bert.gguf", prompt_lookup=2)
    with pytest.raises(ValueError, match="pooling has no effect with embeddings: false"):
        LlamaCppOptions(pooling="rank", embeddings=False)


def test_requests_that_cannot_be(models: Path) -> None:
    engine = load(models / "bert.gguf")
    with pytest.raises(InvalidRequestError, match="does not generate text"):
        engine.add_request(request([5]))
    with pytest.raises(InvalidRequestError, match="does not support embeddings"):
        engine.embed([[5]])
    with pytest.raises(InvalidRequestError, match="not valid Unicode"):
        engine.tokenize_pair("a", "\ud800")
    for pair in ([], [VOCAB_SIZE], [-1]):
        with pytest.raises(InvalidRequestError):
            engine.rerank([[5], pair])
    with pytest.raises(ContextLengthExceededError, match="513 tokens"):
        engine.rerank([[5] * (CONTEXT + 1)])
    assert computed(engine, engine.rerank([])) == []
    engine.close()


def test_over_http_from_a_process_of_its_own(models: Path) -> None:
    names = ("bert", "embeds", "qwen3")
    config = Config.model_validate(
        {
            "models": [
                {
                    "name": name,
                    "backend": "llamacpp",
                    "path": str(models / f"{name}.gguf"),
                    "options": {"threads": 1},
                }
                for name in names
            ]
        }
    )
    documents = ["the bay", "a", "the the the"]
    with serve(config, Plugins()) as server:
        for name in names:
            body = {"model": name, "query": "the bay", "documents": documents, "top_n": 2}
            answer = server.http.post("/v1/rerank", json=body).json()
            scores = [result["relevance_score"] for result in answer["results"]]
            assert scores == sorted(scores, reverse=True)
            assert len(scores) == 2
            if name == "embeds":
                assert answer["results"][0]["index"] == 0
                assert scores[0] == pytest.approx(1, abs=1e-5)
                assert answer["usage"]["prompt_tokens"] == 4 + 4 + 3 + 5
            if name == "bert":
                pair = [CLS, THE, BAY, SEP]
                pairs = [[*pair, THE, BAY, SEP], [*pair, A, SEP], [*pair, THE, THE, THE, SEP]]
                expected = sorted(rerank(models / "bert.gguf", pairs), reverse=True)
                assert scores == pytest.approx(expected[:2], abs=1e-5)
                assert answer["usage"]["prompt_tokens"] == sum(map(len, pairs))
            # SCO-4
            body = {"model": name, "queries": "the bay", "documents": documents}
            found = server.http.post("/v1/score", json=body).json()["data"]
            in_order = sorted((item["score"] for item in found), reverse=True)
            assert in_order[:2] == pytest.approx(scores, abs=1e-5)
            body = {"model": name, "query": "the bay", "texts": ["a " * 1000, "the a the " * 1000]}
            assert server.http.post("/rerank", json=body).status_code == 400
            ranks = server.http.post("/rerank", json={**body, "truncate": True}).json()
            assert {rank["index"] for rank in ranks} == {0, 1}
            cut = server.http.post("/v2/rerank", json={**body, "documents": body.pop("texts")})
            most = 2 * CONTEXT + (4 if name == "embeds" else 0)
            read = cut.json()["meta"]["tokens"]["input_tokens"]
            assert most - 4 <= read <= most
        body = {"model": "bert", "messages": [{"role": "user", "content": "Hi"}]}
        error = server.http.post("/v1/chat/completions", json=body).json()["error"]
        assert "use /v1/rerank" in error["message"]
        body = {"model": "bert", "input": "Hi"}
        assert server.http.post("/v1/embeddings", json=body).status_code == 400


@pytest.mark.parametrize("name", ["bert", "qwen3"])
async def test_keeps_the_promises_of_a_backend(models: Path, name: str) -> None:
    await check_backend(lambda: load(models / f"{name}.gguf"))
