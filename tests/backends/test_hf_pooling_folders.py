"""What a folder of transformers is for, what it says, and what is refused (hf/pooling)."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from enginebay import BackendUnavailableError, InvalidRequestError, PoolingEngine
from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from enginebay.testing import check_backend
from enginebay_checkpoint.folder import Checkpoint
from enginebay_hf.backend import _is_checkpoint
from enginebay_hf.options import HFOptions
from enginebay_hf.pooling.folder import pooling_folder
from enginebay_hf.pooling.sentence import SentenceFolder, read_sentence_folder
from tests.backends import pooling_models as made
from tests.backends import tiny
from tests.backends.pooling_models import CONTEXT, TEXTS, WIDTH
from tests.backends.test_hf_pooling import classify, embed, load, rerank, token_ids
from tests.backends.tiny import edit, refusal, request
from tests.effort import examples
from tests.run import computed
from tests.support import serve

# What a folder is.


def bert(folder: Path) -> Path:
    return made.save(folder, tf.BertModel(tf.BertConfig(**made.SIZES)))


def masked(folder: Path) -> Path:
    return made.save(folder, tf.RobertaForMaskedLM(tf.RobertaConfig(**made.SIZES)))


@pytest.mark.parametrize("make", [bert, masked])
def test_an_encoder_that_says_nothing_of_pooling(
    make: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make(tmp_path)
    engine = load(folder)
    assert "says nothing of pooling" in caplog.text
    caplog.clear()
    mean = load(folder, pooling="mean")
    assert not caplog.text
    ids = token_ids(engine)
    assert (embed(engine, ids) == embed(mean, ids)).all()
    first = load(folder, pooling="cls")
    assert np.abs(embed(engine, ids) - embed(first, ids)).max() > 0.01


def test_a_text_model_makes_embeddings_when_told_to(tmp_path: Path) -> None:
    folder = made.qwen3_text(tmp_path)
    text = tiny.load(folder)
    assert (text.info.generates, text.info.embedding_size) == (True, None)
    with pytest.raises(InvalidRequestError, match="does not support embeddings"):
        text.embed([[5]])
    text.close()
    last, also, mean = (
        load(folder, **options)
        for options in ({"embeddings": True}, {"pooling": "last"}, {"pooling": "mean"})
    )
    ids = token_ids(last)
    assert (embed(last, ids) == embed(also, ids)).all()
    assert np.abs(embed(last, ids) - embed(mean, ids)).max() > 0.01
    assert (last.info.embedding_size, last.info.generates) == (WIDTH, False)


def test_a_text_model_with_code_of_its_own(tmp_path: Path) -> None:
    """As ChatGLM, whose class is called like an encoder's."""
    edit(tmp_path / "config.json", architectures=["ChatGLMModel"])
    assert pooling_folder(tmp_path, tmp_path, HFOptions()) is not None
    edit(tmp_path / "config.json", auto_map={"AutoModelForCausalLM": "code.Model"})
    assert pooling_folder(tmp_path, tmp_path, HFOptions()) is None


def test_a_pooling_folder_beside_a_text_model(tmp_path: Path) -> None:
    folder = made.qwen3_last(tmp_path)
    expected = embed(load(folder), [[5, 6, 7]])
    (folder / "modules.json").unlink()
    engine = load(folder)
    assert engine.info.embedding_size == WIDTH
    found = embed(engine, [[5, 6, 7]])
    assert found / np.linalg.norm(found) == pytest.approx(expected, abs=1e-5)
    text = tiny.load(folder, embeddings=False)
    assert text.info.generates
    text.close()


def test_the_transformer_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """As folders were saved before sentence-transformers 2."""
    folder = made.bert_mean(tmp_path / "new")
    expected = embed(load(folder), [[5, 6, 7]])
    inner = folder / "0_Transformer"
    inner.mkdir()
    for file in folder.iterdir():
        if file.is_file() and file.name != "modules.json":
            file.rename(inner / file.name)
    listed = json.loads((folder / "modules.json").read_text())
    listed[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(listed))
    weights = load_file(inner / "model.safetensors")
    torch.save(weights, inner / "pytorch_model.bin")
    (inner / "model.safetensors").unlink()
    assert _is_checkpoint(folder)
    engine = load(folder)
    assert engine.info.context_length == 64
    assert embed(engine, [[5, 6, 7]]) == pytest.approx(expected, abs=1e-5)


def test_texts_in_lower_case(tmp_path: Path) -> None:
    folder = made.bert_mean(tmp_path)
    edit(folder / "sentence_bert_config.json", do_lower_case=True)
    engine = load(folder)
    assert engine.tokenize("The FOX", add_special_tokens=True) == engine.tokenize(
        "the fox", add_special_tokens=True
    )


# What it says.


def test_info_of_embedding_models(tmp_path: Path) -> None:
    engine = load(made.qwen3_last(tmp_path / "qwen3"))
    info = engine.info
    assert (info.embedding_size, info.shorter_embeddings) == (WIDTH, (8, 16))
    assert dict(info.prompts) == {"query": "Instruct: find it\nQuery:", "document": ""}
    assert (info.default_prompt, info.reranks, info.labels) == (None, False, ())
    assert (info.generates, info.chat_template) == (False, None)
    assert load(made.gemma3_dense(tmp_path / "gemma3")).info.default_prompt == "document"
    engine = load(made.bert_mean(tmp_path / "bert"))
    assert (engine.info.context_length, engine.info.shorter_embeddings) == (64, None)
    with pytest.raises(InvalidRequestError, match="64 tokens"):
        engine.embed([[5] * 65])
    engine = load(tmp_path / "bert", context_length=CONTEXT, max_batch_size=3, matryoshka=[4])
    assert (engine.info.context_length, engine.info.max_batch_size) == (CONTEXT, 3)
    assert engine.info.shorter_embeddings == (4,)
    assert load(tmp_path / "bert", matryoshka=True).info.shorter_embeddings == ()
    assert load(tmp_path / "qwen3", matryoshka=False).info.shorter_embeddings is None
    assert "exceeds the 128" in refusal(tmp_path / "bert", context_length=CONTEXT + 1)
    assert "33, but its embeddings have 32" in refusal(tmp_path / "bert", matryoshka=[8, 33])


def test_positions_that_stand_for_padding_are_no_context(tmp_path: Path) -> None:
    engine = load(made.roberta_dense(tmp_path))
    longest = engine.info.context_length
    assert longest == CONTEXT - made.PAD - 1
    assert np.isfinite(embed(engine, [[5] * longest])).all()


def test_info_of_classifiers(tmp_path: Path) -> None:
    classes = tuple(made.CLASSES.values())
    for make, expected in (
        (made.bert_ranks, (("LABEL_0",), False, True)),
        (made.qwen3_rewards, (("LABEL_0",), False, True)),
        (made.modernbert_classes, (classes, False, False)),
        (made.bert_labels, (classes, True, False)),
    ):
        info = load(make(tmp_path / make.__name__)).info
        assert (info.labels, info.multi_label, info.reranks) == expected
        assert (info.embedding_size, info.generates) == (None, False)
    folder = made.save(
        tmp_path / "plain",
        tf.Qwen3ForSequenceClassification(tf.Qwen3Config(**made.CAUSAL, num_labels=1)),
        pairs=False,
    )
    info = load(folder).info  # it was never shown a query and a document
    assert (info.labels, info.reranks) == (("LABEL_0",), False)


def test_qwen3_reranker_is_asked_in_the_words_of_its_card(tmp_path: Path) -> None:
    folder = made.qwen3_text(tmp_path, max_position_embeddings=512)
    assert "`yes`, `no` and `<|im_start|>`" in refusal(folder, pooling="rank")
    tokenizer = tf.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.add_tokens(["yes", "no"])
    tokenizer.save_pretrained(folder)
    model = tf.Qwen3ForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer))
    made.randomize(model)
    model.save_pretrained(folder)
    engine = load(folder, pooling="rank")
    pair = engine.tokenize_pair("what", "this<|im_end|>")
    text = engine.detokenize(pair)
    assert text.startswith("<|im_start|>system\nJudge whether the Document meets")
    assert "<Query>: what\n<Document>: this<|im_end|><|im_end|>\n<|im_start|>assistant" in text
    assert text.endswith("<think>\n\n</think>\n\n")
    [end] = engine.tokenize("<|im_end|>", add_special_tokens=False)[:1]
    assert pair.count(end) == 2  # and not the document's
    yes, no = (tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no"))
    with torch.inference_mode():
        logits = model.eval()(torch.tensor([pair])).logits[0, -1]
    assert computed(engine, engine.rerank([pair])) == pytest.approx(
        [float(torch.sigmoid(logits[yes] - logits[no]))], abs=1e-4
    )


# What is refused.


def test_modules_that_are_not_known_are_named(tmp_path: Path) -> None:  # MEDIA-42
    folder = made.bert_mean(tmp_path)
    listed = json.loads((folder / "modules.json").read_text())
    for kind in ("sentence_transformers.models.LSTM", "mine.Attention"):
        more = {"idx": 3, "name": "3", "path": "3_LSTM", "type": kind}
        (folder / "modules.json").write_text(json.dumps([*listed, more]))
        assert f"its module {kind.removeprefix('sentence_transformers.models.')} " in refusal(
            folder
        )


def test_folders_that_are_refused(tmp_path: Path) -> None:
    folder = made.bert_mean(tmp_path / "bert")
    pooling = folder / "1_Pooling" / "config.json"
    edit(pooling, pooling_mode="middle")
    assert "pooling_mode 'middle' is not supported" in refusal(folder)
    edit(pooling, pooling_mode="mean", include_prompt=False)
    load(folder)  # there is no prompt
    edit(folder / "config_sentence_transformers.json", prompts={"query": "search: "})
    assert "include_prompt: false" in refusal(folder)
    edit(pooling, include_prompt=True)
    modality = {"message": {"method": "forward"}}
    edit(folder / "sentence_bert_config.json", modality_config=modality)
    assert "chat template before it embeds" in refusal(folder)
    edit(folder / "sentence_bert_config.json", modality_config={})
    assert "adapters is for text" in refusal(folder, adapters={"a": "b"})
    assert "no head to rerank with" in refusal(folder, pooling="rank")
    dense = made.roberta_dense(tmp_path / "dense")
    edit(dense / "2_Dense" / "config.json", activation_function="mine.Swoosh")
    assert "activation_function mine.Swoosh" in refusal(dense)
    edit(dense / "2_Dense" / "config.json", out_features=7)
    assert "weights of 2_Dense" in refusal(dense)
    classifier = made.modernbert_classes(tmp_path / "classes")
    ranks = made.roberta_ranks(tmp_path / "ranks")
    edit(ranks / "config.json", sentence_transformers={"activation_fn": "torch.nn.Tanh"})
    assert "activation_fn torch.nn.Tanh" in refusal(ranks)
    assert "matryoshka is for embeddings" in refusal(classifier, matryoshka=True)
    text = made.qwen3_text(tmp_path / "text")
    assert "but this model generates text" in refusal(text, matryoshka=[8])
    assert "is a classifier; remove" in refusal(ranks, embeddings=True)
    t5 = made.save(
        tmp_path / "t5",
        tf.T5Model(tf.T5Config(vocab_size=320, d_model=16, d_kv=8, d_ff=16, num_layers=1)),
    )
    assert "an encoder and a decoder" in refusal(t5)


def test_an_encoder_of_an_encoder_and_a_decoder(tmp_path: Path) -> None:
    """As sentence-t5."""
    config = tf.T5Config(vocab_size=320, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2)
    folder = made.save(tmp_path, tf.T5EncoderModel(config), segments=False)
    engine = load(folder, pooling="mean")
    assert engine.info.embedding_size == 16
    ids = token_ids(engine)
    assert embed(engine, ids)[1] == pytest.approx(embed(engine, ids[1:2])[0], abs=1e-5)


def test_value_heads_that_are_refused(tmp_path: Path) -> None:
    base = made.qwen3_text(tmp_path / "model")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(BackendUnavailableError, match="has no value_head"):
        tiny.load(base, value_head=str(empty))
    save_file({"v_head.summary.weight": torch.ones(1, 5)}, empty / "value_head.safetensors")
    assert "not a value head of this model" in refusal(base, value_head=str(empty))
    (empty / "value_head.safetensors").write_bytes(b"{}")
    assert "cannot be read" in refusal(base, value_head=str(empty))
    lora = made.value_head(made.lora(tmp_path / "lora", base="Qwen/Qwen3-0.6B"))
    assert _is_checkpoint(lora)
    assert "is a LoRA of Qwen/Qwen3-0.6B" in refusal(lora)


@pytest.mark.parametrize(
    "options",
    [
        {"pooling": "none"},
        {"pooling": "mean", "embeddings": False},
        {"value_head": "a", "embeddings": False},
        {"matryoshka": True, "embeddings": False},
        {"value_head": "a", "pooling": "mean"},
        {"matryoshka": []},
        {"matryoshka": [0]},
    ],
)
def test_options_that_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        HFOptions.model_validate(options)


def test_weights_that_hold_no_numbers(tmp_path: Path) -> None:
    folder = made.bert_mean(tmp_path)
    weights = load_file(folder / "model.safetensors")
    name = "encoder.layer.1.output.dense.weight"
    save_file({**weights, name: weights[name] * torch.nan}, folder / "model.safetensors")
    message = refusal(folder)
    assert "not finite" in message
    assert "float32" in message


def test_a_text_whose_numbers_are_not_finite_leaves_others_alone(tmp_path: Path) -> None:
    folder = made.bert_mean(tmp_path)
    weights = load_file(folder / "model.safetensors")
    table = weights["embeddings.word_embeddings.weight"]
    table[300] = torch.nan
    save_file(weights, folder / "model.safetensors")
    engine = load(folder)
    good, bad = engine.embed([[5, 6]]), engine.embed([[7, 8], [9, 300]])
    assert np.isfinite(computed(engine, good)).all()
    fine, broken = computed(engine, bad)
    assert np.isfinite(fine).all()
    assert not np.isfinite(broken).any()


def test_nothing_is_generated(tmp_path: Path) -> None:
    engine = load(made.modernbert_classes(tmp_path))
    for call in (engine.embed, engine.rerank):
        with pytest.raises(InvalidRequestError, match="does not support"):
            call([[5]])
    with pytest.raises(InvalidRequestError, match="does not generate text"):
        engine.add_request(request([5]))
    assert classify(engine, [[5]]).shape == (1, 3)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda children: (
        st.lists(children, max_size=2) | st.dictionaries(st.text(max_size=3), children)
    ),
    max_leaves=4,
)
_MODULE = st.fixed_dictionaries(
    {},
    optional={
        "path": st.sampled_from(["", "1_Pooling", 3]) | _JSON,
        "type": st.sampled_from(
            [f"sentence_transformers.models.{name}" for name in ("Pooling", "Dense", "Transformer")]
        )
        | _JSON,
    },
)


@given(
    modules=st.lists(_MODULE, max_size=3) | _JSON,
    pooling=st.dictionaries(st.sampled_from(["pooling_mode", "include_prompt"]), _JSON) | _JSON,
    prompts=_JSON,
    transformer=st.dictionaries(st.sampled_from(["modality_config", "max_seq_length"]), _JSON),
)
@examples(100)
def test_any_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    modules: Any,
    pooling: Any,
    prompts: Any,
    transformer: Any,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "1_Pooling").mkdir()
    for name, content in {
        "modules.json": modules,
        "1_Pooling/config.json": pooling,
        "config_sentence_transformers.json": {"prompts": prompts},
        "sentence_bert_config.json": transformer,
    }.items():
        (folder / name).write_text(json.dumps(content))
    with suppress(BackendUnavailableError):
        said = read_sentence_folder(Checkpoint(folder))
        assert said is None or isinstance(said, SentenceFolder)


# Whole.


@pytest.mark.parametrize("make", [made.bert_mean, made.bert_ranks, made.bert_labels, made.bert_cls])
async def test_keeps_the_promises_of_a_backend(make: Any, tmp_path: Path) -> None:
    folder = make(tmp_path)
    await check_backend(lambda: load(folder))


def test_over_http_from_a_process_of_its_own(tmp_path: Path) -> None:
    makers = {"embeds": made.bert_mean, "ranks": made.bert_ranks}
    models = [
        {
            "name": name,
            "backend": "hf",
            "path": str(make(tmp_path / name)),
            "options": {"device": "cpu", "threads": 1},
        }
        for name, make in makers.items()
    ]
    with serve(Config.model_validate({"models": models}), Plugins()) as server:
        answer = server.openai.embeddings.create(model="embeds", input=TEXTS[:3])
        vectors = np.array([item.embedding for item in answer.data])
        engine = load(tmp_path / "embeds")
        assert vectors == pytest.approx(embed(engine, token_ids(engine)[:3]), abs=1e-5)
        body = {"model": "ranks", "query": made.QUERY, "documents": TEXTS[:5]}
        results = server.http.post("/v1/rerank", json=body).json()["results"]
        scores = {result["index"]: result["relevance_score"] for result in results}
        expected = rerank(load(tmp_path / "ranks"))[:5]
        assert [scores[index] for index in range(5)] == pytest.approx(expected, abs=1e-5)
        assert [result["index"] for result in results] == np.argsort(-expected).tolist()
        chat = {"model": "embeds", "messages": [{"role": "user", "content": "Hi"}]}
        assert server.http.post("/v1/chat/completions", json=chat).status_code == 400
    assert isinstance(engine, PoolingEngine)
