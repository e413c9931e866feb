"""Embeddings, scores and classes of the hf backend are those of transformers (SCO-1, 2, 6, 7)."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from enginebay import InvalidRequestError, PoolingEngine
from tests.backends import pooling_models as made
from tests.backends import tiny
from tests.backends.pooling_models import QUERY, TEXTS
from tests.backends.tiny import edit
from tests.run import computed

Matrix = NDArray[np.float64]


def load(folder: Path, **options: Any) -> PoolingEngine:
    engine: Any = tiny.load(folder, **options)
    assert isinstance(engine, PoolingEngine)
    return engine


def token_ids(engine: PoolingEngine, texts: Sequence[str] = TEXTS) -> list[list[int]]:
    return [engine.tokenize(text, add_special_tokens=True) for text in texts]


def embed(engine: PoolingEngine, texts: Sequence[list[int]]) -> Matrix:
    return np.array(computed(engine, engine.embed(texts)))


def classify(engine: PoolingEngine, texts: Sequence[list[int]]) -> Matrix:
    return np.array(computed(engine, engine.classify(texts)))


def rerank(engine: PoolingEngine, documents: Sequence[str] = TEXTS) -> Matrix:
    pairs = [engine.tokenize_pair(QUERY, document) for document in documents]
    return np.array(computed(engine, engine.rerank(pairs)))


def sigmoid(logits: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(logits, dtype=np.float64)))


@pytest.fixture(scope="module", params=made.EMBEDS)
def embeds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.EMBEDS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module", params=made.CLASSIFIES)
def classifies(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.CLASSIFIES[request.param](tmp_path_factory.mktemp(request.param))


# The numbers.

_JOINED = ("cls", "max", "mean", "root", "weighted", "last")
_MODES = {"bert_joined": _JOINED, "bert_cls": ("cls",), "modernbert_cls": ("cls",)}


def pooled(mode: str, hidden: Matrix) -> Matrix:
    """One text's, from its hidden states `[tokens, size]`."""
    weights = np.arange(1, len(hidden) + 1)
    return {
        "cls": hidden[0],
        "last": hidden[-1],
        "max": hidden.max(0),
        "mean": hidden.mean(0),
        "root": hidden.sum(0) / np.sqrt(len(hidden)),
        "weighted": (hidden * weights[:, None]).sum(0) / weights.sum(),
    }[mode]


@torch.inference_mode()
def reference(folder: Path, ids: Sequence[int]) -> Matrix:
    """The embedding of one text, step by step as the folder's maker would."""
    name = folder.name.rstrip("0123456789")
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    hidden = model(torch.tensor([ids])).last_hidden_state[0].double().numpy()
    modes = _MODES.get(name, ("last",) if name == "qwen3_last" else ("mean",))
    vector = np.concatenate([pooled(mode, hidden) for mode in modes])
    for number in (2, 3):
        if (folder / f"{number}_Dense").exists():
            weights = load_file(folder / f"{number}_Dense" / "model.safetensors")
            vector = weights["linear.weight"].double().numpy() @ vector
            vector = vector + weights["linear.bias"].double().numpy()
            vector = np.tanh(vector) if (name, number) == ("roberta_dense", 2) else vector
    normalized = any(folder.glob("*_Normalize")) or "Normalize" in (
        folder / "modules.json"
    ).read_text("utf-8")
    return vector / np.linalg.norm(vector) if normalized else vector


def test_embeddings_are_those_of_transformers(embeds: Path) -> None:  # SCO-6, MEDIA-41
    engine = load(embeds)
    ids = [text[: engine.info.context_length] for text in token_ids(engine)]
    vectors = embed(engine, ids)
    assert vectors.shape == (len(TEXTS), engine.info.embedding_size)
    for text, vector in zip(ids, vectors, strict=True):
        assert vector == pytest.approx(reference(embeds, text), abs=1e-4)
    distances = np.linalg.norm(vectors[:, None] - vectors[None], axis=-1)
    assert distances[~np.eye(len(TEXTS), dtype=bool)].min() > 0.05  # they tell texts apart
    engine.close()


def alone_and_together(compute: Callable[[list[list[int]]], Matrix], ids: list[list[int]]) -> None:
    alone = np.concatenate([compute([text]) for text in ids])
    together, backwards = compute(ids), compute(ids[::-1])[::-1]
    assert np.abs(together - alone).max() < 1e-5
    assert np.abs(backwards - alone).max() < 1e-5


RANDOM = np.random.default_rng(0)
LENGTHS = (1, 2, 3, 60, 60, 59, 55, 30, 31, 5)
ANY_IDS = [RANDOM.integers(4, 300, size=size).tolist() for size in LENGTHS]
ENDS_IN_PADDING = [*ANY_IDS, [40, 41, made.PAD], [made.PAD], [50, made.PAD, made.PAD, 60]]


def test_an_embedding_does_not_depend_on_what_runs_beside_it(embeds: Path) -> None:
    engine = load(embeds)
    alone_and_together(lambda ids: embed(engine, ids), ANY_IDS)
    engine.close()


def test_a_model_that_says_it_pads_with_no_token(tmp_path: Path) -> None:
    folder = made.qwen3_last(tmp_path)
    edit(folder / "config.json", pad_token_id=-1)
    engine = load(folder)
    alone_and_together(engine._pooler.run, ANY_IDS)
    engine.close()


def test_classes_do_not_depend_on_what_runs_beside_them(classifies: Path) -> None:
    engine = load(classifies)
    texts = ANY_IDS if "roberta" in classifies.name else ENDS_IN_PADDING
    alone_and_together(lambda ids: classify(engine, ids), texts)
    engine.close()


@torch.inference_mode()
def test_classes_are_those_of_transformers(classifies: Path) -> None:  # SCO-1, MEDIA-44
    engine = load(classifies)
    model = AutoModelForSequenceClassification.from_pretrained(classifies).eval()
    ids = token_ids(engine)
    outputs = classify(engine, ids)
    for text, row in zip(ids, outputs, strict=True):
        assert row == pytest.approx(model(torch.tensor([text])).logits[0].numpy(), abs=1e-4)
    assert outputs.shape == (len(TEXTS), len(engine.info.labels))
    assert outputs.std(0).min() > 0.05
    engine.close()


@torch.inference_mode()
@pytest.mark.parametrize("name", ["bert_ranks", "roberta_ranks", "qwen3_rewards"])
def test_scores_of_pairs_are_those_of_transformers(name: str, tmp_path: Path) -> None:  # MEDIA-43
    folder = made.CLASSIFIES[name](tmp_path / name)
    engine = load(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = []
    for document in TEXTS:
        pair = tokenizer(QUERY, document, return_token_type_ids=True)
        types = {"token_type_ids": torch.tensor([pair["token_type_ids"]])}
        assert 1 in pair["token_type_ids"]
        logits = model(
            torch.tensor([pair["input_ids"]]), **(types if name == "bert_ranks" else {})
        ).logits
        expected.append(float(logits[0, 0]))
    scores = rerank(engine)
    assert scores == pytest.approx(
        expected if name == "roberta_ranks" else sigmoid(expected), abs=1e-4
    )
    assert scores.std() > 0.01
    engine.close()


def test_what_a_pair_spells_is_plain_text(tmp_path: Path) -> None:
    engine = load(made.bert_ranks(tmp_path))
    pair = engine.tokenize_pair("a<|eos|>b", "<|bos|>")
    assert (pair.count(made.BOS), pair.count(made.EOS)) == (1, 2)
    assert engine.detokenize(pair) == "<|bos|>a<|eos|>b<|eos|><|bos|><|eos|>"
    with pytest.raises(InvalidRequestError, match="not valid Unicode"):
        engine.tokenize_pair("a", "\ud800")
    engine.close()


@torch.inference_mode()
def test_a_language_model_is_asked_for_a_yes(tmp_path: Path) -> None:  # MEDIA-43
    folder = made.qwen3_answers(tmp_path / "pairs")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    engine = load(folder)
    expected = []
    for document in TEXTS:
        ids = tokenizer(QUERY, document)["input_ids"]
        logits = model(torch.tensor([ids])).logits[0, -1]
        expected.append(sigmoid(float(logits[60] - logits[61])))
    assert rerank(engine) == pytest.approx(expected, abs=1e-4)
    assert (engine.info.reranks, engine.info.labels) == (True, ())
    engine.close()


def test_a_chat_template_takes_query_and_document(tmp_path: Path) -> None:
    engine = load(made.qwen3_answers(tmp_path / "template", template=True))
    pair = engine.tokenize_pair("what", "<|eos|>{{ this }}")
    assert engine.detokenize(pair) == (
        "query: what<|eos|>document: <|eos|>{{ this }}<|eos|><tool_call>"
    )
    assert pair.count(made.EOS) == 2
    assert len(set(rerank(engine))) == len(TEXTS)
    engine.close()


def rewards(folder: Path, ids: list[list[int]], lora: Path | None = None) -> list[float]:
    """What LLaMA-Factory computes, with a LoRA merged into the weights."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    head = load_file((lora or folder) / "value_head.safetensors")
    if lora:
        matrices = load_file(lora / "adapter_model.safetensors")
        [down, up] = [tensor for _, tensor in sorted(matrices.items())]
        model.model.layers[1].self_attn.o_proj.weight.data += 2 * up @ down
    values = []
    for text in ids:
        states = model(torch.tensor([text]), output_hidden_states=True).hidden_states[-1]
        values.append(float(states[0, -1] @ head["v_head.summary.weight"][0] + 1))
    return values


@torch.inference_mode()
@pytest.mark.parametrize("binary", [False, True])
def test_a_value_head_beside_its_model(tmp_path: Path, *, binary: bool) -> None:  # SCO-2
    folder = made.value_head(made.qwen3_text(tmp_path / "model"))
    engine = load(folder)
    expected = rewards(folder, ANY_IDS)
    assert classify(engine, ANY_IDS)[:, 0] == pytest.approx(expected, abs=1e-4)
    assert (engine.info.labels, engine.info.reranks) == (("score",), False)
    assert not engine.info.generates
    engine.close()
    if binary:
        (folder / "value_head.safetensors").unlink()
        engine = load(made.value_head(folder, binary=True))
        assert classify(engine, ANY_IDS)[:, 0] == pytest.approx(expected, abs=1e-4)
        engine.close()
    text = tiny.load(folder, embeddings=False)
    assert text.info.generates
    text.close()


@torch.inference_mode()
def test_a_value_head_with_a_lora(tmp_path: Path) -> None:  # SCO-2
    base = made.qwen3_text(tmp_path / "model")
    lora = made.value_head(made.lora(tmp_path / "lora", base=str(base)))
    expected = rewards(base, ANY_IDS, lora)
    plain = made.value_head(tmp_path / "head")
    for folder, options in ((lora, {}), (base, {"value_head": str(lora)})):
        engine = load(folder, **options)
        assert classify(engine, ANY_IDS)[:, 0] == pytest.approx(expected, abs=1e-4)
        alone_and_together(lambda ids, engine=engine: classify(engine, ids), ANY_IDS)
        engine.close()
    engine = load(base, value_head=str(plain / "value_head.safetensors"))
    assert np.abs(classify(engine, ANY_IDS)[:, 0] - expected).max() > 0.01
    engine.close()


# Beside sentence-transformers itself.


@pytest.fixture
def sentence_transformers() -> Any:
    if importlib.util.find_spec("sentence_transformers") is None:
        pytest.skip("sentence-transformers is not installed")
    import sentence_transformers

    return sentence_transformers


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_embeddings_are_those_of_sentence_transformers(
    embeds: Path, sentence_transformers: Any
) -> None:  # SCO-6
    theirs = sentence_transformers.SentenceTransformer(str(embeds), device="cpu")
    engine = load(embeds)
    longest = engine.info.context_length
    for name in (None, *engine.info.prompts):
        prompt = engine.info.prompts.get(name or engine.info.default_prompt or "", "")
        expected = theirs.encode(TEXTS[:-1], prompt_name=name)
        texts = [prompt + text for text in TEXTS[:-1]]
        vectors = embed(engine, [text[:longest] for text in token_ids(engine, texts)])
        cosines = (vectors * expected).sum(1)
        cosines /= np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
        assert cosines.min() > 1 - 1e-5
        assert vectors == pytest.approx(expected, abs=1e-4)
    engine.close()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "template"),
    [
        (made.bert_ranks, False),
        (made.roberta_ranks, False),
        (made.qwen3_answers, False),
        (made.qwen3_answers, True),
    ],
)
def test_scores_are_those_of_sentence_transformers(
    make: Any, tmp_path: Path, sentence_transformers: Any, *, template: bool
) -> None:  # SCO-6
    folder = make(tmp_path / "model", template=True) if template else make(tmp_path / "model")
    edit(
        folder / "config_sentence_transformers.json",
        model_type="CrossEncoder",
        __version__={"sentence_transformers": "6.0.0"},
    )
    if template:
        edit(folder / "config_sentence_transformers.json", activation_fn="torch.nn.Identity")
    theirs = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    engine = load(folder)
    expected = theirs.predict([(QUERY, document) for document in TEXTS])
    assert rerank(engine) == pytest.approx(np.asarray(expected), abs=1e-4)
    engine.close()
