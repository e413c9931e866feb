"""Embeddings of GGUF models."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import PoolingType
from numpy.typing import NDArray
from pydantic import ValidationError

from enginebay import ContextLengthExceededError, InvalidRequestError, PoolingEngine
from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from enginebay.testing import check_backend
from enginebay_llamacpp.engine import LlamaCppEngine
from enginebay_llamacpp.options import LlamaCppOptions
from tests.backends import llamacpp
from tests.backends.gguf_models import (
    CONTEXT,
    HEADS,
    LAYERS,
    VOCAB_SIZE,
    WIDTH,
    write_adapter,
    write_bert,
    write_llama,
    write_recurrent,
    write_sliding,
)
from tests.backends.llamacpp import refusal, request
from tests.run import computed
from tests.support import serve

Matrix = NDArray[np.float64]
RANDOM = np.random.default_rng(0)
PROMPTS = [RANDOM.integers(4, 260, size=size).tolist() for size in (3, 40, 1, 200, 17, CONTEXT)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_bert(folder / "bert.gguf")
    write_bert(folder / "unsaid.gguf", None)
    write_bert(folder / "cls.gguf", PoolingType.CLS)
    write_bert(folder / "rank.gguf", PoolingType.RANK)
    write_llama(folder / "last.gguf", pooling=PoolingType.LAST)
    write_llama(folder / "text.gguf", "{{ messages[0].content }}")
    write_sliding(folder / "sliding.gguf")
    write_recurrent(folder / "recurrent.gguf")
    return folder


def load(path: Path, **options: Any) -> PoolingEngine:
    engine: Any = llamacpp.load(path, **options)
    assert isinstance(engine, PoolingEngine)
    return engine


def embed(path: Path, prompts: list[list[int]], **options: Any) -> Matrix:
    engine = load(path, **options)
    try:
        return unit(np.array(computed(engine, engine.embed(prompts))))
    finally:
        engine.close()


def unit(vectors: Matrix) -> Matrix:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


# The numbers.


def bert(path: Path, token_ids: list[int]) -> Matrix:
    """Hidden states after the last layer of the model of `write_bert`, in numpy."""
    reader = gguf.GGUFReader(path)
    weight = {tensor.name: np.array(tensor.data, np.float64) for tensor in reader.tensors}
    normed = lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)  # noqa: E731
    erf = np.vectorize(__import__("math").erf)
    length, size = len(token_ids), WIDTH // HEADS
    x = weight["token_embd.weight"][token_ids] + weight["position_embd.weight"][:length]
    x = normed(x + weight["token_types.weight"][0])
    for layer in range(LAYERS):
        of = lambda name, at=layer: weight[f"blk.{at}.{name}.weight"].T  # noqa: E731
        q, k, v = (
            (x @ of(f"attn_{name}")).reshape(length, HEADS, size).swapaxes(0, 1) for name in "qkv"
        )
        scores = np.exp(q @ k.swapaxes(1, 2) / np.sqrt(size))
        seen = (scores / scores.sum(-1, keepdims=True)) @ v
        x = normed(x + seen.swapaxes(0, 1).reshape(length, WIDTH) @ of("attn_output"))
        inner = x @ of("ffn_up")
        inner = inner * (1 + erf(inner / np.sqrt(2))) / 2
        x = normed(x + inner @ of("ffn_down"))
    return x


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_bert_computes_what_numpy_computes(models: Path, pooling: str) -> None:
    prompts = PROMPTS[:3]
    states = [bert(models / "bert.gguf", prompt) for prompt in prompts]
    pooled = {
        "mean": [state.mean(0) for state in states],
        "cls": [state[0] for state in states],
        "last": [state[-1] for state in states],
    }
    vectors = embed(models / "bert.gguf", prompts, pooling=pooling)
    assert vectors == pytest.approx(unit(np.array(pooled[pooling])), abs=2e-3)  # f16 tables


def test_mean_pooling_is_the_mean_of_all_last_tokens(models: Path) -> None:
    """A token of a causal model sees those before it: it is the last one of a prefix."""
    prompt = PROMPTS[1]
    prefixes = [prompt[:end] for end in range(1, len(prompt) + 1)]
    states = embed(models / "last.gguf", prefixes)  # of equal length, by the last norm
    mean = embed(models / "last.gguf", [prompt], pooling="mean")
    assert mean[0] == pytest.approx(unit(states.mean(0)), abs=1e-5)
    first = embed(models / "last.gguf", [prompt], pooling="cls")
    assert first[0] == pytest.approx(states[0], abs=1e-5)
    assert np.abs(mean[0] - states[-1]).max() > 0.1


@pytest.mark.parametrize(
    "name", ["bert.gguf", "last.gguf", "text.gguf", "sliding.gguf", "recurrent.gguf"]
)
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_text_alone_is_the_same_in_any_batch(models: Path, name: str, pooling: str) -> None:
    engine = load(models / name, embeddings=True, pooling=pooling, max_batch_size=4)
    alone = unit(np.concatenate([computed(engine, engine.embed([prompt])) for prompt in PROMPTS]))
    together = unit(np.array(computed(engine, engine.embed(PROMPTS))))
    backwards = unit(np.array(computed(engine, engine.embed(PROMPTS[::-1]))))[::-1]
    engine.close()
    in_pieces = embed(
        models / name, PROMPTS, embeddings=True, pooling=pooling, batch_tokens=64, max_batch_size=3
    )
    for other in (together, backwards, in_pieces):
        assert np.abs(other - alone).max() < 1e-5
    assert np.linalg.norm(alone, axis=1) == pytest.approx(1)
    assert np.abs((alone @ alone.T)[~np.eye(len(PROMPTS), dtype=bool)]).max() < 0.95


def test_the_order_of_tokens_matters(models: Path) -> None:
    there, back = embed(models / "bert.gguf", [PROMPTS[0], PROMPTS[0][::-1]])
    assert np.abs(there - back).max() > 0.01


# What a file and the options say.


def test_info(models: Path) -> None:
    engine = load(models / "bert.gguf")
    info = engine.info
    assert (info.embedding_size, info.generates) == (WIDTH, False)
    assert (info.context_length, info.vocab_size) == (CONTEXT, VOCAB_SIZE)
    assert engine.tokenize("The bay", add_special_tokens=True) == [2, 57, 58, 3]
    assert engine.detokenize([2, 57, 58, 3]) == "[CLS] the bay[SEP]"
    engine.close()
    assert info.shorter_embeddings is None
    engine = load(models / "bert.gguf", context_length=100, matryoshka=[16, 32])
    assert engine.info.context_length == 100
    assert engine.info.shorter_embeddings == (16, 32)
    engine.close()
    assert "exceeds the 512" in refusal(models / "bert.gguf", context_length=1000)


def test_which_models_make_embeddings_by_themselves(models: Path) -> None:
    for name in ("bert.gguf", "unsaid.gguf", "last.gguf"):
        load(models / name).close()
    for name, options in (("text.gguf", {}), ("last.gguf", {"embeddings": False})):
        engine: Any = llamacpp.load(models / name, **options)
        assert isinstance(engine, LlamaCppEngine)
        assert (engine.info.embedding_size, engine.info.generates) == (None, True)
        with pytest.raises(InvalidRequestError, match="does not support embeddings"):
            engine.embed([[5]])
        engine.close()


def test_pooling_is_the_models_unless_said_otherwise(models: Path) -> None:
    prompts = PROMPTS[:2]
    for name, own in (("cls", "cls"), ("last", "last"), ("unsaid", "mean")):
        default = embed(models / f"{name}.gguf", prompts)
        assert (default == embed(models / f"{name}.gguf", prompts, pooling=own)).all()
        other = embed(models / f"{name}.gguf", prompts, pooling="last" if own != "last" else "mean")
        assert np.abs(default - other).max() > 0.01
    text = embed(models / "text.gguf", prompts, embeddings=True)
    assert (text == embed(models / "text.gguf", prompts, pooling="mean")).all()


def test_refusals(models: Path, tmp_path: Path) -> None:
    assert "no classification head" in refusal(models / "rank.gguf")
    assert "embedding model" in refusal(models / "bert.gguf", embeddings=False)
    adapter = str(write_adapter(tmp_path / "lora.gguf"))
    assert "adapters is for text" in refusal(models / "last.gguf", adapters={"a": adapter})
    assert "embeddings of 64 numbers" in refusal(models / "bert.gguf", matryoshka=[32, 65])
    assert "but this model generates text" in refusal(models / "text.gguf", matryoshka=True)
    assert "prompt_lookup is for text" in refusal(models / "last.gguf", prompt_lookup=2)
    for options in (
        {"pooling": "none"},
        {"pooling": "cls", "embeddings": False},
        {"matryoshka": True, "embeddings": False},
        {"matryoshka": []},
    ):
        with pytest.raises(ValidationError):
            LlamaCppOptions.model_validate(options)


# Requests.


def test_requests_that_cannot_be(models: Path) -> None:
    engine = load(models / "bert.gguf")
    with pytest.raises(InvalidRequestError, match="does not generate text"):
        engine.add_request(request([5]))
    assert list(engine.step()) == []
    engine.abort_request("unknown")
    for prompt in ([], [VOCAB_SIZE], [-1]):
        with pytest.raises(InvalidRequestError) as caught:
            engine.embed([[5], prompt])
        assert caught.value.param == "input"
    with pytest.raises(ContextLengthExceededError, match="513 tokens"):
        engine.embed([[5] * (CONTEXT + 1)])
    assert len(computed(engine, engine.embed([[5]]))) == 1
    assert computed(engine, engine.embed([])) == []
    engine.close()


def test_over_http_from_a_process_of_its_own(models: Path) -> None:
    options = {"threads": 1}
    config = Config.model_validate(
        {
            "models": [
                {"name": name, "backend": "llamacpp", "path": path, "options": options}
                for name, path in (
                    ("bert", str(models / "bert.gguf")),
                    ("text", str(models / "text.gguf")),
                )
            ]
        }
    )
    with serve(config, Plugins()) as server:
        create = server.openai.embeddings.create
        answer = create(model="bert", input=["the", "a the", "the"])
        assert answer.usage.prompt_tokens == sum((3, 4, 3))
        first, second, third = unit(np.array([item.embedding for item in answer.data]))
        assert np.abs(first - third).max() < 1e-5
        assert np.abs(first - second).max() > 0.01
        plain = create(model="bert", input=[2, 57, 3], encoding_format="float").data[0].embedding
        assert first == pytest.approx(unit(np.array(plain)), abs=1e-5)
        body = {"model": "bert", "messages": [{"role": "user", "content": "Hi"}]}
        assert server.http.post("/v1/chat/completions", json=body).status_code == 400
        body = {"model": "text", "input": "Hi"}
        assert server.http.post("/v1/embeddings", json=body).status_code == 400
        # What is cut off leaves [CLS] and [SEP] where they are.
        cut = {"model": "bert", "input": "the " * 1000, "truncate_prompt_tokens": 5}
        shortened = server.http.post("/v1/embeddings", json=cut).json()
        assert shortened["usage"]["prompt_tokens"] == 5
        plain = create(model="bert", input=[2, 57, 57, 57, 3]).data[0].embedding
        assert shortened["data"][0]["embedding"] == pytest.approx(plain, abs=1e-5)
        [tei] = server.http.post("/embed", json={"inputs": ["the"], "model": "bert"}).json()
        assert tei == pytest.approx(list(first), abs=1e-5)


@pytest.mark.parametrize("name", ["bert", "last"])
async def test_keeps_the_promises_of_a_backend(models: Path, name: str) -> None:
    await check_backend(lambda: load(models / f"{name}.gguf"))
