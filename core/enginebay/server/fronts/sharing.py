"""What a server with `share_limits` has in place of its own gates, counts and stores."""

import os
import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from enginebay.apis.response_store.store import ResponseStore
from enginebay.config.schema import Config, ModelConfig, ServerConfig
from enginebay.contract.cluster import Cluster
from enginebay.models.admission_queue import Gate, GateSize
from enginebay.models.loading.clock import Clock
from enginebay.models.loading.running_backends import local_gate
from enginebay.models.registry import Models
from enginebay.plugins import Plugins
from enginebay.server.fronts.front import Front
from enginebay.server.fronts.ledger import Ledger, LedgerFiles
from enginebay.server.fronts.shared_gate import SharedGate
from enginebay.server.fronts.shared_keys import SharedKeyUses, SharedRecords
from enginebay.server.fronts.shared_responses import SharedResponses
from enginebay.server.fronts.shared_settings import SharedSettings
from enginebay.server.usage.key_use import KeyUses
from enginebay.server.usage.usage_file import usage_path

_STORE = ("response_store", "response_store_entries", "response_store_bytes", "response_store_days")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """A front and what is shared through it. Nothing is connected before `front.start`."""

    front: Front
    key_uses: KeyUses
    response_store: ResponseStore | None

    def make_gate(self, engine: str, config: ModelConfig, size: GateSize) -> Gate:
        """The gate of all fronts for an engine in the cluster, and one of its own for others."""
        if config.cluster is None:
            return local_gate(engine, config, size)
        return SharedGate(self.front, engine, size, config.queue_timeout)

    def settings(self, models: Models, plugins: Plugins, config: Config) -> SharedSettings:
        """What is set for these models, here and at other fronts."""
        return SharedSettings(self.front, models, plugins, config)

    async def refresh_positions(self, models: Models) -> None:
        """Ask how many are ahead of this front's waiting requests, if any wait."""
        started = [model.started for model in models.all() if model.started]
        gates = [each.gate for each in started if isinstance(each.gate, SharedGate)]
        if any(gate.waiting for gate in gates):
            ahead = await self.front.ledger.call("positions", patience=0.0)
            for gate in gates:
                gate.use_positions(ahead)


def share(config: Config, cluster: Cluster, clock: Clock | None = None) -> Sharing:
    """What servers with this config share in a cluster."""
    create = partial(Ledger, ledger_files(config))
    name = f"{socket.gethostname()}:{config.server.port or os.getpid()}"
    front = Front(cluster, name, create, clock=clock)
    shares_responses = (
        "responses" in (config.server.apis or ("responses",))
        and config.server.response_store != "off"
    )
    return Sharing(
        front=front,
        key_uses=SharedKeyUses(front, SharedRecords(front)),
        response_store=SharedResponses(front) if shares_responses else None,
    )


def ledger_files(config: Config) -> LedgerFiles:
    """Where the ledger keeps what outlives it, with this config."""
    usage = usage_path(config)
    server = config.server
    store = ServerConfig.model_validate({key: getattr(server, key) for key in _STORE})
    if store.response_store not in ("off", "memory"):
        store.response_store = str(config.base / Path(store.response_store).expanduser())
    return LedgerFiles(str(usage) if usage else None, store)
