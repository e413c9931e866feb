"""How a machine becomes a node of Ray: the command, its environment, the token."""

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay_cluster.contract import ClusterError, ClusterSettings, NodeSettings
from enginebay_cluster.ray import nodes
from enginebay_cluster.ray.token import token_environment, use_token


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.token"
    path.write_text("0123456789abcdef\n", encoding="utf-8")
    path.chmod(0o600)
    return path


@pytest.fixture
def settings(token: Path) -> ClusterSettings:
    return ClusterSettings(token_file=str(token))


@pytest.fixture
def port() -> int:
    """The first of eight that are free."""
    for first in range(30_000, 32_000, 8):
        try:
            for each in range(first, first + 8):
                socket.create_server(("", each)).close()
        except OSError:
            continue
        return first
    pytest.fail("no eight ports are free")


def options(argv: Any) -> dict[str, str]:
    split = (each.removeprefix("--").partition("=") for each in argv[4:])
    return {name: value for name, _, value in split}


def test_a_head(settings: ClusterSettings, token: Path, port: int, tmp_path: Path) -> None:
    # SCALE-15
    state = tmp_path / "some" / "state"
    command = nodes.node_command(settings, NodeSettings(port=port, state_folder=str(state)))
    assert list(command.argv[1:4]) == ["-m", "ray.scripts.scripts", "start"]
    assert options(command.argv) == {
        "block": "",
        "head": "",
        "port": str(port),
        "node-manager-port": str(port + 1),
        "object-manager-port": str(port + 2),
        "runtime-env-agent-port": str(port + 3),
        "metrics-export-port": str(port + 4),
        "dashboard-agent-grpc-port": str(port + 5),
        "dashboard-agent-listen-port": str(port + 6),
        "include-dashboard": "false",
        "no-monitor": "",
        "min-worker-port": "10002",
        "max-worker-port": "19999",
        "object-store-memory": "100000000",
        "include-log-monitor": "false",
        "disable-usage-stats": "",
        "log-color": "false",
    }
    assert command.env == {
        **nodes.environment(),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": str(state),
        "RAY_gcs_server_port_wait_time_s": "120",
        "RAY_START_HOOK": "enginebay_cluster.ray.nodes.start_head",
        "DASHBOARD_METRIC_PORT": str(port + 7),
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }
    assert nodes.environment()["RAY_USAGE_STATS_ENABLED"] == "0"
    assert state.stat().st_mode & 0o777 == 0o700


def test_a_node(settings: ClusterSettings, port: int) -> None:
    node = NodeSettings(
        head="10.0.0.1:6379",
        host="10.0.0.2",
        port=port,
        cpus=4,
        gpus=0,
        labels=("big", 'with "quotes"'),
    )
    command = nodes.node_command(settings, node)
    given = options(command.argv)
    assert given["address"] == "10.0.0.1:6379"
    assert given["node-ip-address"] == "10.0.0.2"
    assert given["node-manager-port"] == str(port + 1)
    assert (given["num-cpus"], given["num-gpus"]) == ("4", "0")
    assert given["resources"] == (
        r'{"enginebay-label:big": 1000000, "enginebay-label:with \"quotes\"": 1000000}'
    )
    assert not {"head", "port", "include-dashboard"} & set(given)
    assert "RAY_gcs_storage" not in command.env
    assert command.env["RAY_AUTH_MODE"] == "token"


def test_ray_has_these_options(settings: ClusterSettings, port: int, tmp_path: Path) -> None:
    scripts = pytest.importorskip("ray.scripts.scripts")
    known = {name for option in scripts.start.params for name in option.opts}
    for head in (None, "h:1"):
        node = NodeSettings(
            head=head,
            host="h",
            port=port,
            cpus=1,
            gpus=1,
            labels=("a",),
            state_folder=str(tmp_path),
        )
        given = options(nodes.node_command(settings, node).argv)
        assert {f"--{name}" for name in given} <= known


def test_labels_there_and_back() -> None:
    resources = {"CPU": 2.0, nodes.label_resource("b"): 1.0, nodes.label_resource("a:b"): 1.0}
    assert nodes.labels_of(resources) == ("a:b", "b")


def test_a_port_that_is_taken(settings: ClusterSettings, port: int) -> None:
    with (
        socket.create_server(("", port + 5)),
        pytest.raises(ClusterError, match=f"port {port + 5} cannot be used.*{port} to {port + 7}"),
    ):
        nodes.node_command(settings, NodeSettings(head="h:1", port=port))


def test_a_head_that_cannot_keep_its_state(
    settings: ClusterSettings, token: Path, port: int
) -> None:
    with pytest.raises(ClusterError, match=r"cannot keep its state in .*; name another folder"):
        nodes.node_command(settings, NodeSettings(port=port, state_folder=str(token / "state")))


def test_the_hook_of_a_head(tmp_path: Path) -> None:
    """A head that comes back beside nodes of the same machine is not taken for a second one."""
    pytest.importorskip("ray")
    noted = tmp_path / "ray_current_cluster"
    noted.write_text("10.0.0.1:6379", encoding="utf-8")
    params = SimpleNamespace(ray_client_server_port=10001, temp_dir=str(tmp_path))
    for _ in range(2):
        nodes.start_head(params, True)
    assert params.ray_client_server_port is None
    assert not noted.exists()


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "another")


def test_use_token(token: Path, variables: None) -> None:
    use_token(str(token))
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert os.environ["RAY_AUTH_TOKEN"] == ""
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(token)


def test_a_token_that_cannot_be_used(token: Path) -> None:
    with pytest.raises(ClusterError, match=r"No such file.*`enginebay cluster up` writes it"):
        token_environment(f"{token}.not")
    token.chmod(0o640)
    with pytest.raises(ClusterError, match=f"readable by other users.*chmod 600 {token}"):
        token_environment(str(token))
    token.chmod(0o600)
    token.write_text(" \n", encoding="utf-8")
    with pytest.raises(ClusterError, match="is empty; copy the cluster's token"):
        token_environment(str(token))
    token.write_bytes(b"\xff\xfe")
    with pytest.raises(ClusterError, match="it is not a text file"):
        token_environment(str(token))
