"""Take the language model out of a model that sees: `python -m demo.language_model demo/model OUT`.

For engines and converters that know Llama but not LLaVA. Needs safetensors and numpy only.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

PREFIX = "language_model."
"""What the names of its weights begin with in the folder of the whole."""
_COPIED = (
    "chat_template.jinja",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the language model, of that of the whole or as it is."""
    inner: dict[str, Any] = config.get("text_config", config)
    return inner


def extract(source: Path, target: Path) -> None:
    """Write the language model of the folder `source` to `target`, a new folder.

    It appears whole. `FileExistsError`: it is there already.
    """
    made = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        text = json.dumps(text_config(config), indent=2) + "\n"
        (made / "config.json").write_text(text, encoding="utf-8")
        for name in _COPIED:
            shutil.copyfile(source / name, made / name)
        weights = {
            name.removeprefix(PREFIX): weight
            for name, weight in load_file(source / "model.safetensors").items()
            if name.startswith(PREFIX)
        }
        save_file(weights, made / "model.safetensors", metadata={"format": "pt"})
        made.chmod(0o755)
        try:
            made.rename(target)
        except OSError as error:
            if target.exists():
                raise FileExistsError(f"{target} exists already") from error
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="folder of the model that sees")
    parser.add_argument("target", type=Path, help="folder to write; must not exist")
    args = parser.parse_args()
    extract(args.source, args.target)


if __name__ == "__main__":
    main()
