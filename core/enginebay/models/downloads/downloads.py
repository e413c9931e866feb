"""The downloads of a server, each on its own threads."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path

from enginebay.config.schema import Config, resolved_path
from enginebay.models.downloads.choose import Form
from enginebay.models.downloads.download import Control, Places, Progress, download
from enginebay.models.downloads.errors import DownloadConflictError, HubError
from enginebay.models.downloads.named import HubName, LocalModel, find_local
from enginebay.models.downloads.resolve import Kind, Wanted

_AT_ONCE = 4


def _keys(wanted: Wanted) -> set[str]:
    """What no other download may be of, or go to, at the same time."""
    repository = f"repository {wanted.repo_id.lower()}"
    if wanted.quant is not None and not wanted.folder_name:
        return {repository}  # which says where it goes
    return {repository, f"folder {wanted.folder_name or wanted.repo_id.rpartition('/')[2]}"}


def places(config: Config) -> Places:
    """The download targets from the config."""
    server = config.server
    return Places(
        models=Path(resolved_path(server.model_dir, config.base)),
        loras=Path(resolved_path(server.lora_dir, config.base)),
        max_bytes=server.max_download_bytes,
    )


async def _next(arrived: asyncio.Queue[Progress | None], control: Control) -> Progress | None:
    """The next report; raises at the download's timeout, whatever its threads wait for."""
    try:
        async with asyncio.timeout(control.left):
            return await arrived.get()
    except TimeoutError:
        raise control.too_late() from None


class Downloads:
    """Runs downloads, one per repository and folder at a time."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._threads = ThreadPoolExecutor(_AT_ONCE, "enginebay-download")
        self._taken: set[str] = set()
        self._controls: set[Control] = set()
        self._ended = asyncio.Event()

    async def run(self, wanted: Wanted) -> AsyncGenerator[Progress, None]:
        """Progress updates; the last one has the `path` of the folder.

        Closing the generator stops the download; what has arrived is kept for the next attempt.
        Raises a `ServingError` for any failure.
        """
        keys = _keys(wanted)
        if taken := keys & self._taken:
            raise DownloadConflictError(
                f"the {min(taken)} is already being downloaded", param="repo_id"
            )
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Progress | None] = asyncio.Queue()
        control = Control(wanted.timeout)

        def report(progress: Progress) -> None:
            with suppress(RuntimeError):  # the server is gone
                loop.call_soon_threadsafe(arrived.put_nowait, progress)

        def ended(work: asyncio.Future[Path]) -> None:
            self._taken -= keys
            self._ended.set()
            self._controls.discard(control)
            if not work.cancelled():
                work.exception()  # mark as retrieved, even if nothing awaits it any more
            arrived.put_nowait(None)

        self._taken |= keys
        self._controls.add(control)
        work = loop.run_in_executor(self._threads, download, wanted, self._places, report, control)
        work.add_done_callback(ended)
        try:
            last = None
            while (progress := await _next(arrived, control)) is not None:
                last = progress
                yield progress
            path = await work
            assert last is not None
            yield replace(last, path=path)
        finally:
            control.stop()

    async def local(
        self,
        name: HubName,
        form: Form | None,
        report: Callable[[float], None],
        *,
        kind: Kind = "model",
    ) -> LocalModel:
        """A model or LoRA of the hub in this form, downloaded unless it is here already.

        `report` is told the completed fraction. Waits for another download of the repository.
        """
        wanted = Wanted(repo_id=name.repo_id, kind=kind, quant=name.quant, form=form)
        folder = self._places.loras if kind == "lora" else self._places.models
        while True:
            found = await asyncio.to_thread(find_local, folder, name, form)
            if found:
                return found
            if _keys(wanted) & self._taken:
                self._ended.clear()
                await self._ended.wait()
                continue
            async with aclosing(self.run(wanted)) as progress:
                async for each in progress:
                    report(each.completed / (each.total or 1))
            if not await asyncio.to_thread(find_local, folder, name, form):
                raise HubError(f"{name} was downloaded, but its files changed meanwhile")

    def close(self) -> None:
        """Stop all downloads; does not wait for their last bytes."""
        for control in list(self._controls):
            control.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
