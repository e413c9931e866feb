"""`enginebay download`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from enginebay.cli.console import fail, stderr, stdout
from enginebay.cli.settings import ConfigOption, HubTokenOption

if TYPE_CHECKING:
    from enginebay.models.downloads import Control, Places, Progress, Resolved, Wanted


def download(
    repo_id: Annotated[
        str,
        typer.Argument(
            metavar="REPO[:QUANT]", help="Repository, such as Qwen/Qwen3-8B-GGUF:Q4_K_M."
        ),
    ],
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit; the hub's default if not given.")
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Include only files that match, such as *Q4_K_M*."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Exclude files that match, such as *.bin."),
    ] = None,
    folder_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Folder to create; the repository's name if not given."),
    ] = None,
    lora: Annotated[bool, typer.Option("--lora", help="The repository is a LoRA.")] = False,
    token: HubTokenOption = None,
    config: ConfigOption = None,
) -> None:
    """Download a model or LoRA from a Hugging Face hub into `model_dir` or `lora_dir`.

    Existing files are not downloaded again; Ctrl-C keeps partial files.
    """
    from enginebay.cli.client import configured
    from enginebay.models.downloads import HubName, Wanted, places

    settings = configured(config)
    try:
        name = HubName.parse(repo_id)
    except ValueError as error:
        fail(str(error), code=2)
    if name.quant and (include or exclude):
        fail("a quant after the colon chooses the files: leave out --include, --exclude", code=2)
    wanted = Wanted(
        repo_id=name.repo_id,
        quant=name.quant or None,
        kind="lora" if lora else None,
        folder_name=folder_name,
        revision=revision,
        token=token or None,
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
    )
    stdout().print(str(download_shown(wanted, places(settings))), soft_wrap=True)


def download_shown(wanted: Wanted, places: Places, resolved: Resolved | None = None) -> Path:
    """Download with a bar on the terminal, until Ctrl-C; exits if it is stopped or fails."""
    from enginebay.models.downloads import Control

    control = Control()
    before = signal.signal(signal.SIGINT, lambda *_: control.stop())
    try:
        return _run(wanted, places, control, resolved)
    finally:
        signal.signal(signal.SIGINT, before)


def _run(wanted: Wanted, places: Places, control: Control, resolved: Resolved | None) -> Path:
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    from enginebay.contract.errors import ServingError
    from enginebay.models.downloads import StoppedError, download

    console = stderr()
    with Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        task = bars.add_task(wanted.repo_id, total=None)

        def report(progress: Progress) -> None:
            bars.update(task, completed=progress.completed, total=progress.total)
            if progress.waiting:
                console.print("another process downloads into the same folder; waiting for it")
            if not console.is_terminal and progress.completed_files > said[-1]:
                said.append(progress.completed_files)
                console.print(f"{progress.completed_files} of {progress.files}: {progress.file}")

        said = [0]
        try:
            return download(wanted, places, report, control, resolved)
        except StoppedError:
            fail("stopped; run the same command again to resume", code=130)
        except ServingError as error:
            fail(error.message)
