"""What a cluster tells of itself, as tables and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from enginebay.cli.console import print_table, stdout, table
from enginebay_cluster.contract import ClusterNode, ClusterStatus

_ID = 8  # characters of a node's or engine's id that are shown


def print_json(status: ClusterStatus) -> None:
    """All of it, for programs."""
    stdout().print(json.dumps(asdict(status), indent=2), soft_wrap=True)


def print_status(status: ClusterStatus) -> None:
    """Nodes, engines by model, and what is wrong."""
    nodes = table("node", "address", "state", "free CPUs", "free GPUs", "labels")
    for node in _shown(status.nodes):
        nodes.add_row(
            node.id[:_ID],
            node.address,
            _state(node),
            _free(node.free_cpus, node.cpus),
            _free(node.free_gpus, node.gpus),
            ", ".join(node.labels),
        )
    print_table(nodes)
    stdout().print()
    if not status.models:
        stdout().print("no engines: they are started by a server whose config has models for them")
        return
    addresses = {node.id: node.address for node in status.nodes}
    engines = table(
        *("model", "engine", "node", "address", "state", "running", "waiting", "RAM", "GPU")
    )
    for engine in sorted(status.engines, key=lambda engine: (engine.model, engine.node)):
        engines.add_row(
            engine.model,
            engine.id[:_ID],
            engine.node[:_ID],
            addresses.get(engine.node, ""),
            engine.state,
            *("" if number is None else str(number) for number in (engine.running, engine.waiting)),
            *(_size(size) for size in (engine.ram, engine.gpu)),
        )
    print_table(engines)
    for line in _remarks(status):
        stdout().print(line, soft_wrap=True)


def _shown(nodes: Sequence[ClusterNode]) -> Iterator[ClusterNode]:
    """The head first; of machines that are gone, each once, and none that is here again."""
    addresses = {node.address for node in nodes if node.alive}
    for node in sorted(nodes, key=lambda node: (not node.alive, not node.head, node.id)):
        if node.alive or node.address not in addresses:
            addresses.add(node.address)
            yield node


def _remarks(status: ClusterStatus) -> Iterator[str]:
    """What is not as it should be."""
    for model in status.models:
        ours = (each.state for each in status.engines if each.model == model.name)
        ready = sum(state == "ready" for state in ours)
        if model.message or ready != model.wanted:
            message = f": {model.message}" if model.message else ""
            yield f"{model.name}: {ready} of {model.wanted} engines are ready{message}"
    for engine in status.engines:
        if engine.reason:
            yield f"{engine.model}, engine {engine.id[:_ID]}: {engine.reason}"


def _state(node: ClusterNode) -> str:
    if not node.alive:
        return "gone"
    return "head" if node.head else "here"


def _free(free: float | None, total: float) -> str:
    if free is None:
        return ""
    return f"{free:g} of {total:g}"


def _size(size: int | None) -> str:
    from enginebay.models.loading.memory import gib

    return gib(size) if size else ""
