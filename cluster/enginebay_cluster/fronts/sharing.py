"""What a server with `share_limits` has in place of its own gates, counts and stores."""

import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from enginebay.config.schema import Config, ModelConfig
from enginebay.kernel import Answers, Kernel, Peers
from enginebay.models.admission_queue import Gate, GateSize
from enginebay.models.loading.clock import Clock
from enginebay.models.loading.running_backends import local_gate
from enginebay.models.registry import Models
from enginebay.plugins import is_there
from enginebay.server.peers import SettingKind
from enginebay.server.usage.records import Trouble
from enginebay.server.usage.usage_file import usage_path
from enginebay_cluster.contract import Cluster
from enginebay_cluster.fronts.front import Front
from enginebay_cluster.fronts.ledger import Ledger, LedgerFiles
from enginebay_cluster.fronts.shared_gate import SharedGate
from enginebay_cluster.fronts.shared_keys import SharedKeyUses, SharedRecords
from enginebay_cluster.fronts.shared_settings import SharedSettings
from enginebay_cluster.settings import NAME

if TYPE_CHECKING:
    from enginebay_cluster.fronts.shared_responses import SharedResponses

T = TypeVar("T")

_OTHERS = 2.0
"""Seconds that other fronts get to answer."""


class Sharing(Peers):
    """A front and what is shared through it. Nothing is connected before `start`."""

    def __init__(self, front: Front, response_store: "SharedResponses | None") -> None:
        super().__init__()
        self.front = front
        self.name = front.name
        self.handlers = front.handlers
        self.key_uses = SharedKeyUses(front, SharedRecords(front))
        self.response_store = response_store
        self.settings: SharedSettings | None = None

    def start(self, kernel: Kernel) -> None:
        """Connect to the other fronts, for the models of this server."""
        self.settings = SharedSettings(self.front, kernel.models, kernel.plugins, kernel.config)
        self.front.start()

    def make_gate(self, engine: str, config: ModelConfig, size: GateSize) -> Gate:
        """The gate of all fronts for an engine in the cluster, and one of its own for others."""
        if config.backend != NAME:
            return local_gate(engine, config, size)
        return SharedGate(self.front, engine, size, config.queue_timeout)

    @property
    def outage(self) -> Trouble | None:
        return self.front.ledger.trouble

    def delays(self, model: ModelConfig) -> bool:
        return model.backend == NAME and self.outage is not None  # nobody gets a turn

    async def ask(self, kind: str, value: Any, *, patience: float | None = None) -> Answers:
        answers: Answers = await self.front.ledger.call(
            "ask_others", kind, value, _OTHERS, patience=patience
        )
        return answers

    async def refresh_positions(self, models: Models) -> None:
        started = [model.started for model in models.all() if model.started]
        gates = [each.gate for each in started if isinstance(each.gate, SharedGate)]
        if any(gate.waiting for gate in gates):
            ahead = await self.front.ledger.call("positions", patience=0.0)
            for gate in gates:
                gate.use_positions(ahead)

    async def change(
        self,
        kind: SettingKind,
        model: str | None,
        apply: Callable[[], Awaitable[T]],
        value: Callable[[], Any],
    ) -> T:
        assert self.settings, "requests come after the start"
        return await self.settings.change(kind, model, apply, value)


def share(config: Config, cluster: Cluster, clock: Clock | None = None) -> Sharing:
    """What servers with this config share in a cluster."""
    files = ledger_files(config)
    name = f"{socket.gethostname()}:{config.server.port or os.getpid()}"
    front = Front(cluster, name, partial(Ledger, files), clock=clock)
    apis = config.server.apis
    if files.store is None or files.store.store == "off" or (apis and "responses" not in apis):
        return Sharing(front, None)
    from enginebay_cluster.fronts.shared_responses import SharedResponses

    return Sharing(front, SharedResponses(front))


def ledger_files(config: Config) -> LedgerFiles:
    """Where the ledger keeps what outlives it, with this config."""
    usage = usage_path(config)
    files = LedgerFiles(str(usage) if usage else None, None)
    if not is_there("enginebay_responses"):
        return files
    from enginebay_responses.settings import ResponsesSettings

    store = (config.section(ResponsesSettings) or ResponsesSettings()).model_copy()
    if store.store not in ("off", "memory"):
        store.store = str(config.base / Path(store.store).expanduser())
    return replace(files, store=store)
