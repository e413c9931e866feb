"""The reference's answers, computed once and carried to a machine whose time is short.

    python -m tests.gpu.answers FILE

An answer is that of a model, by a digest of its weights. It counts whatever version of transformers
has computed it: in float32 on CPUs, logits of versions and machines differ by less than a hundredth
of the smallest bound of a target.
"""

import dataclasses
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

VARIABLE = "ENGINEBAY_GPU_ANSWERS"
"""An environment variable with the path of the file; without it all answers are computed."""

Answers = dict[tuple[str, int], dict[str, Any]]
"""The fields of a `Continuation` by message and limit in tokens."""


def digest(folder: Path) -> str:
    """Of a model's weights and of what makes tokens of a message."""
    import torch

    made = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        made.update(
            name.encode() + tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    for name in ("tokenizer.json", "chat_template.jinja"):
        made.update((folder / name).read_bytes())
    return made.hexdigest()


def known(folder: Path) -> Answers:
    """The answers of a model that were computed before."""
    file = os.environ.get(VARIABLE)
    if not file or not Path(file).exists():
        return {}
    models = json.loads(Path(file).read_text("utf-8"))["models"]
    return {
        (each["message"], each["tokens"]): each["answer"] for each in models.get(digest(folder), [])
    }


def main(file: Path) -> None:
    """Compute what the tests ask for, of every model."""
    import torch
    import transformers

    from tests.gpu.models import make_models
    from tests.gpu.parity import Reference
    from tests.gpu.test_serving import STORY
    from tests.gpu.test_texts import MESSAGES, STORIES, TOKENS

    os.environ.pop(VARIABLE, None)
    made: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        models = make_models(Path(folder))
        asked = [*((message, TOKENS) for message in MESSAGES), (STORY, 16)]
        adapted = [(message, TOKENS) for message in STORIES]
        for path, questions in (
            (models.folder, asked),
            (models.dequantized, asked),
            (models.merged, adapted),
        ):
            reference = Reference(path)
            made[digest(path)] = [
                {
                    "message": message,
                    "tokens": tokens,
                    "answer": dataclasses.asdict(reference.answer(message, tokens)),
                }
                for message, tokens in questions
            ]
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    file.write_text(json.dumps({"versions": versions, "models": made}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
