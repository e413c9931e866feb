"""Units, compose file and manifests of a cluster agree with the commands and with each other.

The manifests were checked by hand against the schema that KubeRay 1.7 installs
(`ray.io_rayclusters.yaml`), which is not in the repository: what they use of it is listed here.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML

from enginebay.cli.program import program
from enginebay.config.load import load_config
from enginebay.config.schema import ServerConfig
from enginebay_cluster.cli import commands
from enginebay_cluster.ray import nodes
from enginebay_cluster.settings import ClusterConfig
from tests.support import REPOSITORY

CONTRIB = REPOSITORY / "contrib"
UNITS = [CONTRIB / "enginebay-head.service", CONTRIB / "enginebay-node.service"]
SERVER = CONTRIB / "enginebay.service"
DROP_IN = CONTRIB / "enginebay.service.d" / "cluster.conf"
GUIDE = REPOSITORY / "docs" / "guides" / "cluster.md"
COMPOSE = YAML(typ="safe").load((REPOSITORY / "compose.cluster.yml").read_text(encoding="utf-8"))
MANIFESTS = list(
    YAML(typ="safe").load_all((CONTRIB / "kuberay" / "cluster.yml").read_text(encoding="utf-8"))
)
DRAINING = 30
"""Seconds that Ray gives to a node that leaves, by default."""

RAY_CLUSTER = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {
        "rayVersion",
        "authOptions",
        "gcsFaultToleranceOptions",
        "headGroupSpec",
        "workerGroupSpecs",
    },
    "authOptions": {"mode", "secretName"},
    "gcsFaultToleranceOptions": {"backend", "storage"},
    "storage": {"size"},
    "headGroupSpec": {"rayStartParams", "template"},
    "workerGroupSpecs": {
        "groupName",
        "replicas",
        "minReplicas",
        "maxReplicas",
        "rayStartParams",
        "template",
    },
}
"""Fields of a RayCluster that are known to exist, by the field that has them."""

SET_BY_KUBERAY = {"num-cpus", "resources"}
"""Options of nodes that only some nodes have."""


def accepts(arguments: list[str]) -> None:
    """Fails if `enginebay` has no such command or flags; runs nothing."""
    command: Any = typer.main.get_command(program())
    name = "enginebay"
    while hasattr(command, "commands"):
        name, *arguments = arguments
        command = command.commands[name]
    command.make_context(name, list(arguments))


def manifest(kind: str) -> Any:
    [found] = (each for each in MANIFESTS if each["kind"] == kind)
    return found


def sections(path: Path) -> dict[str, list[str]]:
    """Values of a unit's settings, in order; an empty setting has one that is empty."""
    settings: dict[str, list[str]] = {}
    for name, value in re.findall(r"(?m)^(\w+)=(.*)$", path.read_text(encoding="utf-8")):
        settings.setdefault(name, []).append(value)
    return settings


# --- systemd


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_run_commands_that_exist(unit: Path) -> None:
    [line] = sections(unit)["ExecStart"]
    line = line.replace("$HEAD", "10.0.0.1:6379").replace("$OPTIONS", "--label big --cpus 4")
    program, *arguments = shlex.split(line)
    assert program == "/opt/enginebay/bin/enginebay"
    accepts(arguments)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_are_as_strict_as_the_servers(unit: Path) -> None:
    ours, servers = sections(unit), sections(SERVER)
    differ = {name for name in servers if ours.get(name) != servers[name]}
    assert differ == {
        *("Description", "ExecStart", "ExecReload", "Restart", "TimeoutStopSec", "RemoveIPC")
    }
    assert ours["Restart"] == ["always"]
    assert int(ours["TimeoutStopSec"][0]) > DRAINING


def test_a_server_shares_the_folder_of_sockets_with_its_node() -> None:
    ours = sections(DROP_IN)
    names = " ".join(unit.name for unit in UNITS)
    assert ours["JoinsNamespaceOf"] == ours["After"] == [names]
    for unit in (*UNITS, SERVER):
        assert sections(unit)["PrivateTmp"] == ["yes"]
    assert ours["RemoveIPC"] == ["no"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_takes_the_units(unit: Path, tmp_path: Path) -> None:
    """As they are, but with a program, a user and a file that this machine has."""
    text = unit.read_text(encoding="utf-8")
    text = text.replace("/opt/enginebay/bin/enginebay", sys.executable)
    (tmp_path / unit.name).write_text(text.replace("User=enginebay", "User=nobody"), "utf-8")
    for command in (["verify"], ["security", "--offline=true", "--threshold=25"]):
        checked = subprocess.run(
            ["systemd-analyze", *command, str(tmp_path / unit.name)],
            check=False,
            capture_output=True,
            text=True,
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "Unknown" not in checked.stderr


# --- compose


def test_compose_runs_commands_that_exist() -> None:
    services: Mapping[str, Any] = COMPOSE["services"]
    assert set(services) == {"head", "node-1", "node-2", "front-node", "front"}
    for service in services.values():
        accepts(service["command"])
        assert service["image"] == "enginebay:cluster"
        assert set(service.get("depends_on", ())) <= set(services)
        for volume in service["volumes"]:
            assert volume.split(":")[0] in COMPOSE["volumes"]
    assert "ray" in services["head"]["build"]["args"]["EXTRAS"].split()


def test_compose_publishes_only_the_servers_port() -> None:
    services = COMPOSE["services"]
    published = {name: each["ports"] for name, each in services.items() if "ports" in each}
    assert published == {"front-node": ["127.0.0.1:${ENGINEBAY_PORT:-5000}:5000"]}
    assert COMPOSE["networks"]["cluster"] == {"internal": True}
    outside = [name for name, each in services.items() if "outside" in each.get("networks", ())]
    assert outside == ["front-node"]


def test_a_server_in_compose_shares_what_a_node_and_it_need() -> None:
    services = COMPOSE["services"]
    for shared in ("network_mode", "pid", "ipc"):
        assert services["front"][shared] == "service:front-node"
    assert services["front-node"]["ipc"] == "shareable"
    assert services["front"]["volumes"] == services["front-node"]["volumes"]
    assert "front-tmp:/tmp" in services["front"]["volumes"]


def test_compose_tells_that_a_node_runs_by_where_it_listens_then() -> None:
    for name in ("head", "front-node"):
        *_, test = COMPOSE["services"][name]["healthcheck"]["test"]
        assert test.endswith(f"/127.0.0.1/{commands.PORT + commands.READY}")
    assert nodes.PORTS[commands.READY] == "--node-manager-port"


def test_compose_waits_for_nodes_and_servers() -> None:
    for name, service in COMPOSE["services"].items():
        needed = ServerConfig().shutdown_timeout + 5 if name == "front" else DRAINING
        assert int(service["stop_grace_period"].removesuffix("s")) > needed


def test_the_settings_of_the_server_in_compose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yml").write_text(
        (REPOSITORY / "config.yml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    for name, value in COMPOSE["services"]["front"]["environment"].items():
        monkeypatch.setenv(name, value)
    config = load_config(tmp_path / "config.yml")
    cluster = config.section(ClusterConfig)
    assert cluster
    assert cluster.address == "head:6379"
    assert config.models[0].backend == "cluster"
    assert config.models[0].options["replicas"] == 2


# --- KubeRay


def test_fields_of_the_ray_cluster_are_known() -> None:
    def check(value: Any, name: str) -> None:
        for each in value if isinstance(value, list) else [value]:
            if name in RAY_CLUSTER:
                assert set(each) <= RAY_CLUSTER[name], name
                for key, below in each.items():
                    check(below, key)

    check(manifest("RayCluster"), "")


def groups() -> Iterator[tuple[dict[str, str], Any]]:
    """Options and pod of each kind of node."""
    spec = manifest("RayCluster")["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        yield group["rayStartParams"], group["template"]["spec"]


def test_kuberay_starts_nodes_as_our_commands_do(tmp_path: Path) -> None:
    """But for ports that it sets itself."""
    from tests.cluster.site import free_ports
    from tests.cluster.test_nodes import options

    token = tmp_path / "token"
    token.write_text("0123456789abcdef", encoding="utf-8")
    token.chmod(0o600)
    state = str(tmp_path / "state")
    for (params, _), head in zip(groups(), (None, "h:1"), strict=True):
        settings = nodes.ClusterSettings(token_file=str(token))
        node = nodes.NodeSettings(head=head, port=free_ports(), state_folder=state)
        given = options(nodes.node_command(settings, node).argv)
        for name, value in params.items():
            if name not in SET_BY_KUBERAY and not name.endswith("manager-port"):
                assert (given[name] or "true") == value, name
        left = set(given) - set(params) - {"block", "head", "address", "port", "log-color"}
        assert {name for name in left if "port" not in name} == set()


def test_nodes_of_the_manifest_have_the_environment_of_ours() -> None:
    for _, pod in groups():
        [container] = pod["containers"]
        given = {each["name"]: each["value"] for each in container["env"]}
        assert given == nodes.environment()


def test_the_label_in_the_manifest() -> None:
    _, (params, _) = groups()
    assert list(nodes.labels_of(json.loads(json.loads(params["resources"])))) == ["big"]


def test_the_token_is_on_and_is_that_of_the_server() -> None:
    # SCALE-15
    spec = manifest("RayCluster")["spec"]
    assert spec["authOptions"] == {"mode": "token", "secretName": "enginebay-cluster"}
    [node] = manifest("Deployment")["spec"]["template"]["spec"]["initContainers"]
    [variable] = node["env"]
    assert variable["name"] == "ENGINEBAY_CLUSTER_TOKEN"
    assert variable["valueFrom"]["secretKeyRef"] == {
        "name": spec["authOptions"]["secretName"],
        "key": "auth_token",  # as KubeRay calls it
    }


def test_the_manifests_use_one_version_and_image() -> None:
    pinned = next(
        line
        for line in (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8").splitlines()
        if line.startswith("ray = ")
    )
    minor = re.findall(r">=([\d.]+)", pinned)[0]
    assert manifest("RayCluster")["spec"]["rayVersion"].startswith(minor)
    pods = [pod for _, pod in groups()] + [manifest("Deployment")["spec"]["template"]["spec"]]
    containers = [
        each for pod in pods for each in (*pod["containers"], *pod.get("initContainers", ()))
    ]
    assert {each["image"] for each in containers} == {COMPOSE["services"]["head"]["image"]}
    for pod in pods:
        names = {volume["name"] for volume in pod["volumes"]}
        for each in (*pod["containers"], *pod.get("initContainers", ())):
            assert {mount["name"] for mount in each["volumeMounts"]} <= names
    for each in containers:
        if "args" in each:
            accepts(each["args"])


def test_a_server_in_kubernetes_finds_head_and_node(tmp_path: Path) -> None:
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    [node], [server] = pod["initContainers"], pod["containers"]
    assert pod["shareProcessNamespace"] is True
    head = f"{manifest('RayCluster')['metadata']['name']}-head-svc:6379"
    assert head in node["args"]
    assert node["startupProbe"]["tcpSocket"] == {"port": commands.PORT + commands.READY}
    shared = {mount["mountPath"] for mount in server["volumeMounts"]}
    assert {"/tmp", "/dev/shm", "/data"} <= shared
    (tmp_path / "config.yml").write_text(manifest("ConfigMap")["data"]["config.yml"], "utf-8")
    config = load_config(tmp_path / "config.yml")
    settings = config.section(ClusterConfig)
    assert settings
    assert settings.address == head
    port = server["ports"][0]["containerPort"]
    assert manifest("Service")["spec"]["ports"][0]["port"] == port == ServerConfig().port


# --- the guide


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


def test_commands_of_the_guide_exist() -> None:
    lines = "\n".join([*blocks("bash"), *blocks("console")]).replace("\\\n", " ")
    commands = re.findall(
        r"(?m)(?:^|[ /])enginebay ((?:cluster|keys|serve)\b.*?)(?: +#.*)?$", lines
    )
    commands += re.findall(r"`enginebay (cluster .*?)`", GUIDE.read_text(encoding="utf-8"))
    assert len(commands) > 8
    for command in commands:
        accepts(shlex.split(command))


def test_settings_of_the_guide_are_valid(tmp_path: Path) -> None:
    found = blocks("yaml")
    assert found
    for text in found:
        (tmp_path / "config.yml").write_text(text, encoding="utf-8")
        load_config(tmp_path / "config.yml")


def test_files_of_the_guide_exist() -> None:
    named = set(re.findall(r"(?:contrib/|compose\.cluster)[\w./-]*\w", GUIDE.read_text("utf-8")))
    assert {str(unit.relative_to(REPOSITORY)) for unit in UNITS} <= named
    for name in named:
        assert (REPOSITORY / name).exists(), name


def test_ports_of_the_guide_are_those_that_nodes_use() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    last = 6379 + len(nodes.PORTS)
    lowest, highest = nodes.WORKER_PORTS
    assert f"6379 to {last}" in text
    assert f"{lowest} to {highest}" in text
