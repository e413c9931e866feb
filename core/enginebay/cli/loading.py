"""Progress of loading models: bars on a terminal, lines elsewhere."""

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn


class Loading:
    """A line for each model, from `start()` to `stop()`. `report` may be called on any thread."""

    def __init__(self, models: Sequence[str], console: Console) -> None:
        self._console = console
        self._stages = dict.fromkeys(models, "")
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[stage]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._tasks = {name: self._bars.add_task(name, total=1.0, stage="") for name in models}

    def start(self) -> None:
        """Begin to show it."""
        self._bars.start()

    def stop(self) -> None:
        """Remove the bars; may be called twice."""
        self._bars.stop()

    def report(self, model: str, stage: str, fraction: float) -> None:
        """`model` is at `stage`; `fraction` of all the work is done. Others are not shown."""
        if model not in self._tasks:
            return
        self._bars.update(self._tasks[model], completed=fraction, stage=stage)
        work = stage.partition(":")[0]  # after it, sizes may change often
        if not self._console.is_terminal and work != self._stages[model]:
            self._stages[model] = work
            self._console.print(f"{model}: {stage}")
