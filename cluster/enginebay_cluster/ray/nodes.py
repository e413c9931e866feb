"""How a machine becomes a node: the `ray start` of this environment, its ports and settings."""

import json
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginebay_cluster.contract import ClusterError, ClusterSettings, NodeCommand, NodeSettings
from enginebay_cluster.ray.token import token_environment

PORTS = (
    "--port",
    "--node-manager-port",
    "--object-manager-port",
    "--runtime-env-agent-port",
    "--metrics-export-port",
    "--dashboard-agent-grpc-port",
    "--dashboard-agent-listen-port",
)
"""Options for ports of a node, which follow its first one in this order; only heads have that one.

A node runs when its node manager, the second one, listens.
"""

METRICS_OF_THE_HEAD = len(PORTS)
"""How far from its first port a head has its own metrics, for which there is no option."""

WORKER_PORTS = (10002, 19999)
"""Where the processes of engines and of Ray's other actors listen."""

_OBJECT_STORE = 100_000_000
"""Bytes; at least 75 MiB. No objects are sent: messages and answers go by gRPC."""

_JOINING = 7
"""How often, a second apart, a head is asked to let a node or a server in."""

_READING = 120
"""Seconds in which a head must have read its state."""

_WITHOUT_A_HEAD = 600
"""Seconds for which what runs waits for a head that is away."""

HEAD_RESOURCE = "node:__internal_head__"
"""A resource that only the head's node has."""

_LABEL = "enginebay-label:"
_LABEL_AMOUNT = 1_000_000
"""How much of a label a node has; each engine that asks for it takes some."""


def label_resource(label: str) -> str:
    """The name of the resource that nodes with this label have."""
    return f"{_LABEL}{label}"


def labels_of(resources: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels of a node with these resources."""
    return tuple(sorted(name.removeprefix(_LABEL) for name in resources if name.startswith(_LABEL)))


def node_command(settings: ClusterSettings, node: NodeSettings) -> NodeCommand:
    """What makes this machine a node; the token must be there.

    `ClusterError` if the token cannot be used, a port is taken, or a head cannot keep its state.
    """
    token = token_environment(settings.token_file)
    for port in range(node.port, node.port + len(PORTS) + 1):
        _require_free(port, node)
    where, env = _as_node(node) if node.head else _as_head(node)
    return NodeCommand(
        [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *where, *_options(node)],
        {**environment(), **env, **token},
    )


def environment() -> dict[str, str]:
    """What Ray reads from the environment of nodes, and of what connects to one."""
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**31 - 1),  # prompts with pictures
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(_WITHOUT_A_HEAD),
        "RAY_gcs_server_port_wait_time_s": str(_JOINING),
    }


def start_head(params: Any, head: bool) -> None:
    """Called in the process of `ray start`, by RAY_START_HOOK, with what it was told.

    Without its client server, for which there is no option: nobody needs it, and it opens a port.
    And with the address forgotten that Ray wrote down when it ran here last: beside a node of this
    machine that waits for it, a head would take itself for one that runs already.
    """
    from ray._private.utils import get_ray_address_file

    params.ray_client_server_port = None
    Path(get_ray_address_file(params.temp_dir)).unlink(missing_ok=True)


def _as_head(node: NodeSettings) -> tuple[list[str], dict[str, str]]:
    state = Path(node.state_folder).absolute()
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(
            f"the head cannot keep its state in {state}: {error.strerror}; name another folder "
            "with --state"
        ) from error
    ports = [f"{option}={node.port + place}" for place, option in enumerate(PORTS)]
    env = {
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": str(state),
        "RAY_gcs_server_port_wait_time_s": str(_READING),
        "RAY_START_HOOK": f"{start_head.__module__}.{start_head.__name__}",
        "DASHBOARD_METRIC_PORT": str(node.port + METRICS_OF_THE_HEAD),
        # Its own engines would be waited for, but what places engines elsewhere ends with it.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }
    return ["--head", *ports, "--include-dashboard=false", "--no-monitor"], env


def _as_node(node: NodeSettings) -> tuple[list[str], dict[str, str]]:
    ports = [f"{option}={node.port + place}" for place, option in enumerate(PORTS) if place]
    return [f"--address={node.head}", *ports], {}


def _options(node: NodeSettings) -> list[str]:
    lowest, highest = WORKER_PORTS
    options = [
        f"--min-worker-port={lowest}",
        f"--max-worker-port={highest}",
        f"--object-store-memory={_OBJECT_STORE}",
        "--include-log-monitor=false",
        "--disable-usage-stats",
        "--log-color=false",
    ]
    if node.host is not None:
        options.append(f"--node-ip-address={node.host}")
    if node.cpus is not None:
        options.append(f"--num-cpus={node.cpus:g}")
    if node.gpus is not None:
        options.append(f"--num-gpus={node.gpus:g}")
    if node.labels:
        amounts = {label_resource(label): _LABEL_AMOUNT for label in node.labels}
        options.append(f"--resources={json.dumps(amounts)}")
    return options


def _require_free(port: int, node: NodeSettings) -> None:
    """Ray would end minutes later, or not at all."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except (OSError, OverflowError) as error:
            first, last = node.port, node.port + len(PORTS)
            raise ClusterError(
                f"port {port} cannot be used ({error}): a node needs {first} to {last}. Does "
                "another one run on this machine? End it, or choose other ports with --port"
            ) from error
