"""Embeddings of all-MiniLM-L6-v2 beside those of transformers. REAL-14"""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from enginebay.config.schema import Config
from tests.real.serving import loaded

pytestmark = [pytest.mark.real, pytest.mark.thorough]
TEXTS = [
    "The cat sits on the mat.",
    "Ein Satz auf Deutsch, mit Umlauten: äöü.",
    "東京は日本の首都です。",
    "def f(x): return x ** 2",
    "word " * 100,
    "😀",
]


@torch.inference_mode()
def reference(folder: Path) -> np.ndarray:
    """Means of the last layer, of length 1, one text at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    rows = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in TEXTS]
    means = np.stack([row.mean(0).numpy() for row in rows])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def test_embeddings_are_those_of_transformers(minilm: Path) -> None:
    options = {"device": "cpu", "dtype": "float32", "threads": 2}
    model = {"name": "minilm", "backend": "hf", "path": str(minilm), "options": options}
    with loaded(Config.model_validate({"models": [model]})) as server:
        together = server.openai.embeddings.create(model="minilm", input=TEXTS)
        single = [server.openai.embeddings.create(model="minilm", input=text) for text in TEXTS]
    expected = reference(minilm)
    for found in (
        [each.embedding for each in together.data],
        [s.data[0].embedding for s in single],
    ):
        assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-5
        assert ((np.array(found) * expected).sum(axis=1) > 1 - 1e-6).all()
