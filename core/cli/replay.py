"""`enginebay replay`: captured answers through the parsers of today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from core.cli.console import fail, stdout
from core.cli.settings import ConfigOption, load_plugins, read_config


def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Captured requests.")],
    chunks: Annotated[
        Literal["as-captured", "1", "random"],
        typer.Option(help="How to cut the text: as it came, a character a time, or anywhere."),
    ] = "as-captured",
    seed: Annotated[int, typer.Option(help="For random: the same seed cuts alike.")] = 0,
    config: ConfigOption = None,
) -> None:
    """Read captured answers again; exit code 1 if one comes out otherwise than it was answered."""
    import random

    from core.chat.answer.replay import CannotReplayError, read_capture
    from core.chat.answer.replay import replay as parse

    plugins = load_plugins(read_config(config), quiet=True)
    console, differ = stdout(), False
    for file in files:
        try:
            captured = read_capture(file)
            formats = plugins.reasoning, plugins.tools
            now = parse(captured, *formats, chunks, random.Random(seed))
        except CannotReplayError as error:
            fail(str(error), code=2)
        for choice in sorted({*now, *captured.answer}):
            said, answered = now.get(choice, []), captured.answer.get(choice, [])
            console.print(f"{file}: choice {choice} of {captured.id}")
            for part in said:
                console.print(f"  {json.dumps(part, ensure_ascii=False)}", soft_wrap=True)
            if said != answered:
                differ = True
                console.print("  differs from what was answered:")
                for part in answered:
                    console.print(f"  - {json.dumps(part, ensure_ascii=False)}", soft_wrap=True)
    if differ:
        raise typer.Exit(1)
