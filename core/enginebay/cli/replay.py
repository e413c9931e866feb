"""`enginebay replay`: captured answers through the current parsers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from enginebay.cli.console import fail, stdout
from enginebay.cli.settings import ConfigOption, load_plugins, read_config


def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Captured requests.")],
    chunks: Annotated[
        Literal["as-captured", "1", "random"],
        typer.Option(help="How to split the text: as recorded, by character, or randomly."),
    ] = "as-captured",
    seed: Annotated[int, typer.Option(help="Seed of random splits.")] = 0,
    config: ConfigOption = None,
) -> None:
    """Parse captured answers again; exit code 1 if one differs from the recorded answer."""
    import random

    from enginebay.chat.answer.replay import CannotReplayError, read_capture
    from enginebay.chat.answer.replay import replay as parse

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
                console.print("  differs from the recorded answer:")
                for part in answered:
                    console.print(f"  - {json.dumps(part, ensure_ascii=False)}", soft_wrap=True)
    if differ:
        raise typer.Exit(1)
