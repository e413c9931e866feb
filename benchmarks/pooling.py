"""How fast are embeddings, beside sentence-transformers on the same machine?

    python benchmarks/pooling.py --with FOLDER

FOLDER holds sentence-transformers (`pip install --target FOLDER --no-deps sentence-transformers
scikit-learn scipy joblib threadpoolctl cloudpickle`), unless it is installed. Both embed the same
64 texts with the same random model of the size of all-MiniLM-L6-v2, from text to numbers, in one
process with the same threads, in turn; the lines give texts a second of wall-clock time and of CPU
time (which others on the machine hardly change), medians of all rounds, and our share of theirs.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers.processors import TemplateProcessing

from benchmarks import environments
from enginebay import BackendSettings, PoolingEngine
from enginebay_hf.loading import load_engine

DEMO = environments.ROOT / "demo" / "model"
TEXTS = 64
LENGTHS = {
    "short, 4 to 16 words": (4, 16),
    "long, 120 to 240": (120, 240),
    "mixed, 4 to 240": (4, 240),
}
WORDS = "the red cat sat on a mat and looked at birds while rain fell over towns"
Embed = Callable[[Sequence[str]], NDArray[np.float32]]


def make_model(folder: Path) -> None:
    """Save a random model of sentence-transformers' most used shape."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    tokenizer.chat_template = None
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A <|im_end|>",
        pair="<|im_start|> $A <|im_end|> $B <|im_end|>",
        special_tokens=[
            (name, tokenizer.convert_tokens_to_ids(name)) for name in ("<|im_start|>", "<|im_end|>")
        ],
    )
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=512,
    )
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    pooling = '{"word_embedding_dimension": 384, "pooling_mode_mean_tokens": true}'
    (folder / "1_Pooling" / "config.json").write_text(pooling)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = ", ".join(
        f'{{"idx": {i}, "name": "{i}", "path": "{path}", '
        f'"type": "sentence_transformers.models.{kind}"}}'
        for i, (path, kind) in enumerate(kinds)
    )
    (folder / "modules.json").write_text(f"[{modules}]")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 512}')


def ours(folder: Path, threads: int) -> Embed:
    """The engine, with all texts in one call."""
    options = {"device": "cpu", "threads": threads, "dtype": "float32"}
    engine = load_engine(BackendSettings(name="ours", path=str(folder), options=options))
    assert isinstance(engine, PoolingEngine)

    def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        answer = engine.embed([engine.tokenize(text, add_special_tokens=True) for text in texts])
        assert isinstance(answer, Future)
        while not answer.done():
            engine.step()
        return np.array(answer.result(), dtype=np.float32)

    return embed


def theirs(folder: Path) -> Embed:
    """sentence-transformers, as its guide has it."""
    from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]

    model = SentenceTransformer(str(folder), device="cpu")
    return lambda texts: np.asarray(model.encode(list(texts), show_progress_bar=False))


def measure(embed: Embed, texts: Sequence[str]) -> tuple[float, float]:
    """Texts a second of wall-clock time and of CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    embed(texts)
    return (
        len(texts) / (time.perf_counter() - wall),
        len(texts) / (time.process_time() - cpu),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--with", dest="library", help="folder that has sentence-transformers")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    if arguments.library:
        sys.path.append(arguments.library)
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    rng = random.Random(0)
    words = WORDS.split()
    with tempfile.TemporaryDirectory() as place:
        make_model(folder := Path(place) / "model")
        sides = {"ours": ours(folder, arguments.threads), "theirs": theirs(folder)}
        for name, (least, most) in LENGTHS.items():
            texts = [" ".join(rng.choices(words, k=rng.randint(least, most))) for _ in range(TEXTS)]
            one, other = (embed(texts) for embed in sides.values())
            assert np.abs(one - other).max() < 1e-4
            rates: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
            for _ in range(arguments.rounds):
                for side, embed in sides.items():
                    rates[side].append(measure(embed, texts))
            for at, clock in enumerate(("wall", "CPU")):
                mine, their = (
                    statistics.median(rate[at] for rate in rates[side]) for side in sides
                )
                ratio = statistics.median(
                    a[at] / b[at] for a, b in zip(rates["ours"], rates["theirs"], strict=True)
                )
                print(f"{name:22} {clock:5} {mine:8.1f} {their:8.1f} texts/s  {ratio:.2f}")


if __name__ == "__main__":
    main()
