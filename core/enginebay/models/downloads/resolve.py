"""From what is wanted of a repository to its files, at one commit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from enginebay.contract.errors import InvalidRequestError, ServingError
from enginebay.models.downloads.choose import Choice, Form, choices, choose, folder_name
from enginebay.models.downloads.hub import Hub, RemoteFile, Snapshot

Kind = Literal["model", "lora"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to download.

    `kind`: a LoRA or a model; None: detect it from the files. `folder_name`: where, below the
    folder of its kind; None for the repository's name. `include` and `exclude` are patterns of file
    names, where `*` also matches `/`; without `include` all files are meant. `quant`: in place of
    them, the files of one model, by its quant, file or branch; "" for the recommended one, in this
    `form` or any. `timeout`: seconds after which it stops, finished or not.
    """

    repo_id: str
    kind: Kind | None = None
    folder_name: str | None = None
    revision: str | None = None
    token: str | None = field(default=None, repr=False)
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    quant: str | None = None
    form: Form | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """The files to download, all from one commit.

    `choice`: the model that they are, if one was asked for. `folder`: where they go, unless
    another name is wanted.
    """

    hub: Hub
    revision: str | None
    commit: str
    files: Sequence[RemoteFile]
    folder: str
    choice: Choice | None = None


def resolve(wanted: Wanted) -> Resolved:
    """Ask the hub for it. Blocks; raises a `ServingError`."""
    if wanted.quant is not None:
        return _model(wanted, wanted.quant)
    hub = Hub(wanted.repo_id, wanted.revision, wanted.token)
    snapshot = hub.snapshot()
    folder = wanted.repo_id.rpartition("/")[2]
    return Resolved(hub, wanted.revision, snapshot.commit, _selected(snapshot, wanted), folder)


def _model(wanted: Wanted, quant: str) -> Resolved:
    """The model of that quant; if there is none, that of the branch of this name."""
    repo_id, revision, form = wanted.repo_id, wanted.revision, wanted.form
    hub = Hub(repo_id, revision, wanted.token)
    snapshot = hub.snapshot()
    try:
        choice = choose(repo_id, snapshot.files, quant, form)
    except InvalidRequestError as error:
        if revision is not None or (choices(repo_id, snapshot.files, form) and not quant):
            raise
        branches = _branches(hub)
        if quant not in branches:
            if branches:
                error.message += f"; its branches are {', '.join(branches)}"
            raise
        hub, revision = Hub(repo_id, quant, wanted.token), quant
        snapshot = hub.snapshot()
        choice = choose(repo_id, snapshot.files, "", form)
    folder = folder_name(repo_id, choice, revision)
    return Resolved(hub, revision, snapshot.commit, choice.files, folder, choice)


def _branches(hub: Hub) -> list[str]:
    try:
        return hub.branches()
    except ServingError:  # hubs need not have any; what led here says more
        return []


def _selected(snapshot: Snapshot, wanted: Wanted) -> list[RemoteFile]:
    files = [
        file
        for file in snapshot.files
        if any(fnmatchcase(file.name, pattern) for pattern in wanted.include or ("*",))
        and not any(fnmatchcase(file.name, pattern) for pattern in wanted.exclude)
    ]
    if not files:
        raise InvalidRequestError(
            f"`include` and `exclude` leave no file of {wanted.repo_id}; it has "
            f"{len(snapshot.files)} files; those that end in .yml are never downloaded",
            param="include",
        )
    return files
