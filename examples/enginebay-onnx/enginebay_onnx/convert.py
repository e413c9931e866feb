"""Convert a folder of transformers: `python -m enginebay_onnx.convert SOURCE TARGET`.

The network is the business of onnxruntime-genai's model builder
(https://onnxruntime.ai/docs/genai/howto/build-model.html). What lies beside it is copied as it is.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


def convert(source: Path, target: Path, precision: str) -> None:
    """`SystemExit` with the reason if the builder fails."""
    if not (source / "config.json").is_file():
        raise SystemExit(f"{source} has no config.json: it is no folder of transformers")
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
    with tempfile.TemporaryDirectory() as cache:
        arguments = ["-i", source, "-o", target, "-p", precision, "-e", "cpu", "-c", cache]
        built = subprocess.run([*builder, *map(str, arguments)])
    if built.returncode:
        raise SystemExit(
            "onnxruntime-genai could not convert it (see above); what it needs comes with: "
            "pip install 'enginebay-onnx[convert]'"
        )
    for name in COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m enginebay_onnx.convert")
    parser.add_argument("source", type=Path, help="the model's folder, with *.safetensors")
    parser.add_argument("target", type=Path, help="the folder to write")
    parser.add_argument("--precision", choices=["fp32", "int8", "int4"], default="fp32")
    arguments = parser.parse_args()
    convert(arguments.source, arguments.target, arguments.precision)


if __name__ == "__main__":
    main()
