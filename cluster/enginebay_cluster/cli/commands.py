"""`enginebay cluster`: the machines of a cluster, and the engines on them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer

from enginebay.cli.console import fail, stderr, stdout
from enginebay.cli.settings import ConfigOption, load_plugins

if TYPE_CHECKING:
    from enginebay_cluster.cli.nodes import Ended, Start
    from enginebay_cluster.contract import Cluster

PORT = 6379
BETWEEN = 10
"""From the first port of a node to that of the next one on the same machine."""

READY = 1
"""From the first port of a node to the one at which it listens when it runs; heads, before that,
at the first one."""

HEAD_PATIENCE, NODE_PATIENCE = 150.0, 30.0
"""Seconds for a head to start, which may have much to read; for a node."""

_REFUSED = re.compile(r"invalid\w*token", re.IGNORECASE)
"""What a node that is not let in says last of its token, amid advice for others than our users."""

_Result = TypeVar("_Result")

HostOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="This machine's address for the others. [that of its network]"
    ),
]
PortOption = Annotated[
    int,
    typer.Option(metavar="N", min=1024, max=65_000, help="First of the eight ports of this node."),
]
CpusOption = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="CPUs that engines get here. [as many as there are]"),
]
GpusOption = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="GPUs that engines get here. [as many as there are]"),
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="LABEL", help="For models that ask for it; may be repeated."),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="PATH", help="File with the token. [cluster.token]"),
]
AddressOption = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="The head. [as the config or this machine knows it]"),
]


def commands() -> typer.Typer:
    """Return all commands of `enginebay cluster`."""
    app = typer.Typer(
        help="Machines that run engines together, and what runs there.", no_args_is_help=True
    )
    for command in (up, join, status, down):
        app.command()(command)
    return app


def up(
    port: PortOption = PORT,
    host: HostOption = None,
    cpus: CpusOption = None,
    gpus: GpusOption = None,
    label: LabelOption = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where the head keeps its state. [cluster]"),
    ] = None,
    nodes: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=20, help="Also run N more nodes here, to try it."),
    ] = 0,
    token_file: TokenFileOption = None,
    config: ConfigOption = None,
) -> None:
    """Make this machine the head of a cluster, until Ctrl-C; the first start creates its token.

    After a restart it goes on with the engines that it knew.
    """
    from enginebay_cluster.cli.address import own_address
    from enginebay_cluster.cli.nodes import Start
    from enginebay_cluster.cli.token import make_token
    from enginebay_cluster.contract import NodeSettings

    found = _found(config, token_file)
    unused = make_token(found.token)
    here = NodeSettings(
        host=host,
        port=port,
        cpus=cpus,
        gpus=gpus,
        labels=tuple(label or ()),
        state_folder=str((state or found.base / "cluster").absolute()),
    )
    near = f"{host or '127.0.0.1'}:{port}"
    others = [
        replace(here, head=near, port=port + BETWEEN * number) for number in range(1, nodes + 1)
    ]
    patience = [HEAD_PATIENCE, *(NODE_PATIENCE for _ in others)]
    starts = [
        Start(
            command=partial(found.cluster.node_command, node),
            port=node.port + READY,
            patience=seconds,
        )
        for node, seconds in zip([here, *others], patience, strict=True)
    ]

    def announce(number: int) -> None:
        nonlocal unused
        if number:
            stdout().print(f"Node        {number} of {nodes} more runs on this machine")
            return
        address = f"{host or own_address()}:{port}"
        stdout().print(f"The cluster's head runs at {address}; Ctrl-C stops it", style="bold")
        stdout().print(f"Token       {found.token}{' (new)' if unused else ''}", soft_wrap=True)
        stdout().print(f"Add others  enginebay cluster join {address}")
        unused = False

    try:
        _run(starts, announce, ["the head", *(f"node {number}" for number in range(1, nodes + 1))])
    finally:
        if unused:
            found.token.unlink(missing_ok=True)


def join(
    head: Annotated[
        str, typer.Argument(metavar="HEAD:PORT", help="Where the head listens, as `up` shows it.")
    ],
    port: PortOption = PORT,
    host: HostOption = None,
    cpus: CpusOption = None,
    gpus: GpusOption = None,
    label: LabelOption = None,
    token_file: TokenFileOption = None,
    config: ConfigOption = None,
) -> None:
    """Make this machine a node of the cluster with that head, until Ctrl-C.

    Asks for the cluster's token once and keeps it in the token file.
    """
    from enginebay_cluster.cli.address import reached
    from enginebay_cluster.cli.nodes import Start
    from enginebay_cluster.cli.token import ask_for_token
    from enginebay_cluster.contract import NodeSettings

    found = _found(config, token_file)
    head = reached(head, PORT)
    asked = ask_for_token(found.token)
    here = NodeSettings(
        head=head, host=host, port=port, cpus=cpus, gpus=gpus, labels=tuple(label or ())
    )
    start = Start(
        command=partial(found.cluster.node_command, here),
        port=port + READY,
        patience=NODE_PATIENCE,
    )

    def announce(number: int) -> None:
        stdout().print(
            f"This machine is a node of the cluster at {head}; Ctrl-C takes it out", style="bold"
        )

    def refused() -> str:
        if asked:
            found.token.unlink(missing_ok=True)
            return f"{head} refused the token, which is forgotten; run this again to enter another"
        return (
            f"{head} refused the token in {found.token}; delete this file and run this again to "
            "enter another, or copy the file of the cluster's first machine"
        )

    _run([start], announce, ["this node"], refused)


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
    address: AddressOption = None,
    token_file: TokenFileOption = None,
    config: ConfigOption = None,
) -> None:
    """Show the nodes of the cluster, what is free on them, and their engines."""
    from enginebay_cluster.cli.tables import print_json, print_status

    cluster = _found(config, token_file, address).cluster
    told = _ask(cluster, cluster.status)
    (print_json if as_json else print_status)(told)


def down(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Only the engines of this model.")
    ] = None,
    address: AddressOption = None,
    token_file: TokenFileOption = None,
    config: ConfigOption = None,
) -> None:
    """End the engines of a model or of all, for all servers, once they have answered.

    Answers that run get cluster.drain_timeout seconds for that, then break off. A server that runs
    starts the engines again when it loads the model again.
    """
    found = _found(config, token_file, address)
    cluster = found.cluster

    async def remove() -> Sequence[str]:
        if model is not None:
            names = [each.name for each in (await cluster.status()).models]
            if model not in names:
                fail(f"no engines of {model!r} run here; those of: {', '.join(names) or 'none'}")
        return await cluster.remove(model)

    ended = _ask(cluster, remove)
    if not ended:
        stderr().print("no engines were running")
    for name in ended:
        stdout().print(
            f"the engines of {name} end; answers that run get cluster.drain_timeout to finish: "
            f"{found.drain_timeout:g} seconds, by the config here",
            soft_wrap=True,
        )


class _Found(NamedTuple):
    """The cluster of a command, and what its config says.

    `token`: the file; `base`: the folder that paths are relative to; `drain_timeout`: seconds.
    """

    cluster: Cluster
    token: Path
    base: Path
    drain_timeout: float


def _found(config: Path | None, token_file: Path | None, address: str | None = None) -> _Found:
    """By the config, or by defaults where there is none. Exits if there cannot be a cluster."""
    from enginebay.cli.client import configured
    from enginebay_cluster import make_cluster
    from enginebay_cluster.settings import ClusterConfig, head_address

    read = configured(config)
    settings = (read.section(ClusterConfig) or ClusterConfig()).settings(read.base)
    if token_file is not None:
        settings = replace(settings, token_file=str(token_file.absolute()))
    if address is not None:
        try:
            settings = replace(settings, address=head_address(address))
        except ValueError as error:
            fail(f"--address {error}, not {address!r}", code=2)
    cluster = make_cluster(settings, load_plugins(read))
    if cluster is None:
        fail("no plugin makes clusters: one that does is blocked, or failed to load", code=2)
    if missing := cluster.missing():
        fail(missing, code=2)
    return _Found(cluster, Path(settings.token_file), read.base, settings.drain_timeout)


def _run(
    starts: Sequence[Start],
    announce: Callable[[int], None],
    names: Sequence[str],
    refused: Callable[[], str] | None = None,
) -> None:
    """Run nodes of these names, and exit with their code.

    `refused` says what to do about a wrong token.
    """
    from enginebay_cluster.cli.nodes import run_nodes
    from enginebay_cluster.contract import ClusterError

    try:
        ended = asyncio.run(run_nodes(starts, announce))
    except ClusterError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{names[0]} cannot be started: {error}")
    _explain(ended, names[ended.number], refused)
    raise typer.Exit(ended.code)


def _explain(ended: Ended, what: str, refused: Callable[[], str] | None) -> None:
    if ended.code == 0:
        return
    if ended.unready and refused and _REFUSED.search("\n".join(ended.last_words)):
        stderr().print(refused())
        return
    for line in ended.last_words:
        stderr().print(line)
    happened = "could not be started" if ended.unready else "has ended by itself"
    stderr().print(f"{what} {happened}; above is what it said last")


def _ask(cluster: Cluster, question: Callable[[], Awaitable[_Result]]) -> _Result:
    """The answer of a cluster; exits with what to do if it cannot be reached."""
    from enginebay.contract.errors import ServingError

    async def ask() -> _Result:
        try:
            return await question()
        finally:
            await cluster.close()

    try:
        return asyncio.run(ask())
    except ServingError as error:
        fail(str(error))
