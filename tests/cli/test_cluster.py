"""`enginebay cluster`, with a plugin whose nodes are small programs of the tests."""

import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from enginebay_cluster.cli import address, commands, nodes
from tests.cli.conftest import Run

pytestmark = pytest.mark.skipif(os.name == "nt", reason="clusters are for Linux")

Start = Callable[..., "subprocess.Popen[str]"]

PLUGIN = """
import sys
from pathlib import Path

from enginebay import hookimpl
from enginebay_cluster.contract import (
    Cluster, ClusterEngine, ClusterError, ClusterModel, ClusterNode, ClusterStatus, NodeCommand,
)

GIB = 1 << 30
NODES = [
    ClusterNode(id="bbbbbbbbbbbb", address="10.0.0.2", alive=True, cpus=8, free_cpus=6.5, gpus=2,
                free_gpus=0, labels=("big", "fast")),
    ClusterNode(id="cccccccccccc", address="10.0.0.3", alive=False),
    ClusterNode(id="dddddddddddd", address="10.0.0.3", alive=False),
    ClusterNode(id="eeeeeeeeeeee", address="10.0.0.1", alive=False),
    ClusterNode(id="aaaaaaaaaaaa", address="10.0.0.1", alive=True, head=True, cpus=4, free_cpus=4,
                gpus=0, free_gpus=0),
]
MODELS = [ClusterModel(name="chat", wanted=3, message="no node has 2 free GPUs")]
ENGINES = [
    ClusterEngine(id="one123456789", model="chat", node="bbbbbbbbbbbb", state="ready", running=3,
                  waiting=0, ram=2 * GIB, gpu=20 * GIB),
    ClusterEngine(id="two123456789", model="chat", node="bbbbbbbbbbbb", state="unavailable",
                  reason="it does not answer"),
    ClusterEngine(id="new123456789", model="chat", node="", state="starting"),
]


class Fake(Cluster):
    def __init__(self, settings):
        self.settings = settings

    def missing(self):
        return "engines elsewhere need Fake; install it" if Path("missing").exists() else None

    async def connect(self):
        if Path("gone").exists():
            raise ClusterError(f"nothing listens at {self.settings.address}; start the head")

    async def status(self):
        await self.connect()
        if Path("idle").exists():
            return ClusterStatus(NODES, [], [])
        return ClusterStatus(NODES, MODELS, ENGINES)

    async def remove(self, model=None):
        await self.connect()
        return [] if Path("idle").exists() else [model or "chat"]

    async def close(self):
        Path("closed").touch()

    def node_command(self, node):
        if Path("refuse").exists():
            raise ClusterError("this machine cannot be a node")
        hows = Path("how").read_text().split() if Path("how").exists() else ["waits"]
        env = {"NODE_OF": node.head or "itself", "NODE_TOKEN": self.settings.token_file}
        with open("nodes", "a+") as file:
            file.seek(0)
            how = hows[min(len(file.readlines()), len(hows) - 1)]
            print(node, file=file)
        return NodeCommand([sys.executable, "node.py", str(node.port), how], env)

    backend = share = None


Fake.__abstractmethods__ = frozenset()


@hookimpl
def make_cluster(settings):
    return Fake(settings)
"""

NODE = """
import os, signal, socket, subprocess, sys, threading

port, how = int(sys.argv[1]), sys.argv[2]
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())


def note(what):
    with open("events", "a") as file:
        file.write(f"{what} {port}\\n")


note(f"starts at {os.environ['NODE_OF']}")
print("first it said this", flush=True)
if how == "fails":
    sys.exit("then that there is no memory")
if how == "refused":
    sys.exit("InvalidToken: this token is wrong")
note("listens")
if how == "leaves":
    left = os.open("left", os.O_WRONLY)
    program = "import signal; signal.alarm(100); signal.pause()"
    nowhere = subprocess.DEVNULL
    command = [sys.executable, "-c", program]
    subprocess.Popen(command, stdout=nowhere, stderr=nowhere, pass_fds=[left])
    how = "ends"
with socket.create_server(("127.0.0.1", port + 1)) as server:
    if how == "ends":
        server.accept()
        sys.exit(7)
    while not stop.wait() or how == "stubborn":
        note("goes on")
        stop.clear()
note("ends")
sys.exit(1)
"""


@pytest.fixture(autouse=True)
def plugin() -> None:
    Path("plugins").mkdir()
    Path("plugins/fake.py").write_text(PLUGIN, encoding="utf-8")
    Path("node.py").write_text(NODE, encoding="utf-8")


@pytest.fixture
def port() -> int:
    """One of which those after it are free, at which nodes listen."""
    while True:
        with ExitStack() as stack:
            first = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port: int = first.getsockname()[1] - 1
            if port > 65_000:
                continue
            try:
                for other in (port + 11, port + 21):
                    stack.enter_context(socket.create_server(("127.0.0.1", other)))
            except OSError:
                continue
            return port


@pytest.fixture
def start() -> Iterator[Start]:
    """`enginebay cluster` in a process of its own."""
    with ExitStack() as stack:

        def started(*arguments: str) -> "subprocess.Popen[str]":
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "enginebay.cli", "cluster", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            return process

        yield started


def lines_until(process: "subprocess.Popen[str]", text: str) -> list[str]:
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if text in line:
            return lines
    assert process.stderr
    pytest.fail(f"ended without {text!r}: {lines} {process.stderr.read()}")


SIZES = ["2.0", "GiB", "20.0", "GiB"]


def events() -> list[str]:
    path = Path("events")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def token() -> str:
    path = Path("cluster.token")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path.read_text(encoding="utf-8").strip()


def write(name: str, text: str = "") -> None:
    Path(name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_makes_a_token_and_runs_until_a_signal(start: Start, port: int, number: int) -> None:
    # SCALE-15
    process = start("up", "--port", str(port), "--host", "10.0.0.1", "--label", "a", "--gpus", "0")
    shown = lines_until(process, "Add others")
    assert shown == [
        f"The cluster's head runs at 10.0.0.1:{port}; Ctrl-C stops it",
        f"Token       {Path('cluster.token').absolute()} (new)",
        f"Add others  enginebay cluster join 10.0.0.1:{port}",
    ]
    assert len(bytes.fromhex(token())) == 32
    process.send_signal(number)
    assert process.wait(30) == 0
    assert events() == [f"starts at itself {port}", f"listens {port}", f"ends {port}"]
    [node] = Path("nodes").read_text(encoding="utf-8").splitlines()
    assert node == (
        f"NodeSettings(head=None, host='10.0.0.1', port={port}, cpus=None, gpus=0, labels=('a',), "
        f"state_folder='{Path('cluster').absolute()}')"
    )


def test_up_keeps_the_token_and_the_state_where_it_is_told(start: Start, port: int) -> None:
    Path("there").mkdir()
    write("there/config.yml", "plugins: {folder: ../plugins}\ncluster: {token_file: a/secret}\n")
    first = start("up", "--port", str(port), "--config", "there/config.yml")
    assert lines_until(first, "Token")[-1].endswith("there/a/secret (new)")
    first.terminate()
    assert first.wait(30) == 0
    made = Path("there/a/secret").read_text(encoding="utf-8")
    again = start("up", "--port", str(port), "--config", "there/config.yml", "--state", "kept")
    assert lines_until(again, "Token")[-1].endswith("there/a/secret")
    again.terminate()
    assert again.wait(30) == 0
    assert Path("there/a/secret").read_text(encoding="utf-8") == made
    nodes = Path("nodes").read_text(encoding="utf-8").splitlines()
    assert f"state_folder='{Path('there/cluster').absolute()}'" in nodes[0]
    assert f"state_folder='{Path('kept').absolute()}'" in nodes[1]


def test_more_nodes_on_this_machine_start_one_after_the_other(start: Start, port: int) -> None:
    process = start("up", "--port", str(port), "--nodes", "2")
    lines_until(process, "2 of 2 more")
    assert events() == [
        f"starts at itself {port}",
        f"listens {port}",
        f"starts at 127.0.0.1:{port} {port + 10}",
        f"listens {port + 10}",
        f"starts at 127.0.0.1:{port} {port + 20}",
        f"listens {port + 20}",
    ]
    process.terminate()
    assert process.wait(30) == 0
    assert sorted(events()[6:]) == [f"ends {port + more}" for more in (0, 10, 20)]


def test_when_one_node_ends_all_end(run: Run, port: int) -> None:
    write("how", "waits ends waits")
    result = run("cluster", "up", "--port", str(port), "--nodes", "1")
    assert result.exit_code == 7
    assert result.stderr.splitlines() == [
        "first it said this",
        "node 1 has ended by itself; above is what it said last",
    ]
    assert f"ends {port}" in events()


def test_what_a_node_has_left_running_is_ended(run: Run, port: int) -> None:
    os.mkfifo("left")
    reader = os.open("left", os.O_RDONLY | os.O_NONBLOCK)
    write("how", "leaves")
    assert run("cluster", "up", "--port", str(port)).exit_code == 7
    assert select.select([reader], [], [], 30)[0]  # nobody can write any more
    os.close(reader)


def test_a_node_ends_when_up_is_killed(start: Start, port: int) -> None:
    process = start("up", "--port", str(port))
    lines_until(process, "Add others")
    with socket.create_connection(("127.0.0.1", port + 1), timeout=30) as connection:
        process.kill()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_a_head_that_cannot_start(run: Run, port: int) -> None:
    write("how", "fails")
    result = run("cluster", "up", "--port", str(port))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        "first it said this",
        "then that there is no memory",
        "the head could not be started; above is what it said last",
    ]
    write("refuse")
    result = run("cluster", "up", "--port", str(port))
    assert (result.exit_code, result.stderr) == (1, "this machine cannot be a node\n")


def test_a_token_of_a_head_that_did_not_start_is_removed(run: Run, port: int) -> None:
    for reason in ("refuse", "how"):
        write(reason, "fails")
        assert run("cluster", "up", "--port", str(port)).exit_code == 1
        assert not Path("cluster.token").exists()
        Path(reason).unlink()
    write("cluster.token", "kept\n")
    write("refuse")
    assert run("cluster", "up", "--port", str(port)).exit_code == 1
    assert Path("cluster.token").exists()


def test_a_node_that_never_listens_is_ended(
    run: Run, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "HEAD_PATIENCE", 0)
    result = run("cluster", "up", "--port", str(port))
    assert result.exit_code == 1
    assert "the head could not be started" in result.stderr


def test_a_second_signal_does_not_wait(start: Start, port: int) -> None:
    write("how", "stubborn")
    process = start("up", "--port", str(port))
    lines_until(process, "Add others")
    process.terminate()
    while f"goes on {port}" not in events():
        assert process.poll() is None
    process.terminate()
    assert process.wait(30) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port + 1))


def test_of_several_nodes_none_is_waited_for_long(
    run: Run, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one does not listen in time, and the first one does not end when told to."""
    monkeypatch.setattr(commands, "NODE_PATIENCE", 0)
    monkeypatch.setattr(nodes, "GRACE", 0)
    write("how", "stubborn")
    assert run("cluster", "up", "--port", str(port), "--nodes", "1").exit_code == 1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port + 1))


@pytest.fixture
def head() -> Iterator[str]:
    """Something that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_join_asks_for_the_token_once(run: Run, port: int, head: str) -> None:
    write("how", "ends")
    arguments = ("cluster", "join", head, "--port", str(port), "--label", "big", "--cpus", "2")
    result = run(*arguments, input="s3cret\n")
    assert result.stdout == (
        f"This machine is a node of the cluster at {head}; Ctrl-C takes it out\n"
    )
    assert (result.exit_code, token()) == (7, "s3cret")
    assert "this node has ended by itself; above is what it said last" in result.stderr
    assert run(*arguments, input="another\n").exit_code == 7
    assert token() == "s3cret"
    assert run(*arguments, env={"ENGINEBAY_CLUSTER_TOKEN": "replaced"}).exit_code == 7
    assert token() == "replaced"
    first, *_ = Path("nodes").read_text(encoding="utf-8").splitlines()
    assert f"head='{head}', host=None, port={port}, cpus=2, gpus=None, labels=('big',)" in first


def test_join_asks_at_a_terminal_without_showing_what_is_typed(port: int, head: str) -> None:
    import pty

    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "enginebay.cli", "cluster", "join", head, "--port", str(port)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,  # without a terminal of its own but this one
    ) as process:
        os.close(theirs)
        text = ""
        while "Token of the cluster" not in text:
            text += os.read(ours, 65_536).decode()
        os.write(ours, b"s3cret\n")
        while "is a node of" not in text:
            text += os.read(ours, 65_536).decode()
        process.terminate()
        assert process.wait(30) == 0
    os.close(ours)
    assert "s3cret" not in text
    assert token() == "s3cret"


@pytest.mark.parametrize("given", ["", "\n", "two words\n", "ключ\n"])
def test_what_is_no_token(run: Run, head: str, given: str) -> None:
    result = run("cluster", "join", head, input=given)
    assert result.exit_code == 2
    assert "ENGINEBAY_CLUSTER_TOKEN" in result.stderr
    assert not Path("cluster.token").exists()


def test_a_wrong_token_that_was_just_entered_is_asked_for_again(
    run: Run, port: int, head: str
) -> None:
    # SCALE-15
    write("how", "refused")
    result = run("cluster", "join", head, "--port", str(port), input="wrong\n")
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()  # nothing of what the node said
    assert line.startswith(f"{head} refused the token, which is forgotten")
    assert not Path("cluster.token").exists()


def test_a_wrong_token_of_the_file_is_not_deleted(run: Run, port: int, head: str) -> None:
    write("how", "refused")
    write("mine.token", "wrong\n")
    result = run("cluster", "join", head, "--port", str(port), "--token-file", "mine.token")
    assert result.exit_code == 1
    path = Path("mine.token").absolute()
    assert f"{head} refused the token in {path}; delete this file" in result.stderr
    assert path.exists()


def test_a_head_that_cannot_be_reached(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "REACHING", 0)
    with socket.socket() as taken:  # bound, not listening
        taken.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("cluster", "join", where, input="token\n")
    assert result.exit_code == 1
    assert f"nothing answers at {where}" in result.stderr
    assert "Is the head running (`enginebay cluster up`)" in result.stderr
    assert not Path("cluster.token").exists()


@pytest.mark.parametrize("head", [":1", "host:", "host:x", "host:70000"])
def test_what_is_no_address_of_a_head(run: Run, head: str) -> None:
    result = run("cluster", "join", head)
    assert result.exit_code == 2
    assert "is not the address of a head" in result.stderr


def test_status(run: Run) -> None:
    # SCALE-20
    result = run("cluster", "status")
    assert (result.exit_code, result.stderr) == (0, "")
    *tables, missing, reason = result.stdout.splitlines()
    assert missing == "chat: 1 of 3 engines are ready: no node has 2 free GPUs"
    assert reason == "chat, engine two12345: it does not answer"
    assert [line.split() for line in tables] == [
        ["node", "address", "state", "free", "CPUs", "free", "GPUs", "labels"],
        ["aaaaaaaa", "10.0.0.1", "head", "4", "of", "4", "0", "of", "0"],
        ["bbbbbbbb", "10.0.0.2", "here", "6.5", "of", "8", "0", "of", "2", "big,", "fast"],
        ["cccccccc", "10.0.0.3", "gone"],
        [],
        ["model", "engine", "node", "address", "state", "running", "waiting", "RAM", "GPU"],
        ["chat", "new12345", "starting"],
        ["chat", "one12345", "bbbbbbbb", "10.0.0.2", "ready", "3", "0", *SIZES],
        ["chat", "two12345", "bbbbbbbb", "10.0.0.2", "unavailable"],
    ]
    assert Path("closed").exists()


def test_status_as_json(run: Run) -> None:
    told = json.loads(run("cluster", "status", "--json").stdout)
    assert [node["id"][0] for node in told["nodes"]] == ["b", "c", "d", "e", "a"]
    assert told["models"] == [
        {"name": "chat", "wanted": 3, "message": "no node has 2 free GPUs"},
    ]
    assert told["engines"][0]["gpu"] == 20 << 30


def test_status_of_a_cluster_without_engines(run: Run) -> None:
    write("idle")
    assert "no engines: they are started by a server" in run("cluster", "status").stdout


@pytest.mark.parametrize("command", ["status", "down"])
def test_a_cluster_that_cannot_be_reached(run: Run, command: str) -> None:
    # SCALE-20
    write("gone")
    result = run("cluster", command, "--address", "10.0.0.1:6379")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "nothing listens at 10.0.0.1:6379; start the head\n"


@pytest.mark.parametrize("address", ["foo", "foo:99999", "http://127.0.0.1:27000", "::1:6379"])
def test_what_is_no_address(run: Run, address: str) -> None:
    result = run("cluster", "status", "--address", address)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("--address must be HOST:PORT of the head")


def test_down(run: Run) -> None:
    write("config.yml", "cluster: {drain_timeout: 30}\n")
    for arguments in ([], ["chat"]):
        result = run("cluster", "down", *arguments)
        assert (result.exit_code, result.stdout) == (
            0,
            "the engines of chat end; answers that run get cluster.drain_timeout to finish: "
            "30 seconds, by the config here\n",
        )
    result = run("cluster", "down", "chad")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "no engines of 'chad' run here; those of: chat\n"
    write("idle")
    assert run("cluster", "down").stderr == "no engines were running\n"


@pytest.mark.parametrize("arguments", [["up"], ["join", "h"], ["status"], ["down"]])
def test_the_library_is_not_installed(run: Run, arguments: list[str]) -> None:
    write("missing")
    result = run("cluster", *arguments)
    assert (result.exit_code, result.stderr) == (2, "engines elsewhere need Fake; install it\n")
    assert not Path("cluster.token").exists()


def test_no_plugin_makes_clusters(run: Run) -> None:
    write("config.yml", "plugins: {folder: none, blocked: [cluster]}\n")
    result = run("cluster", "status")
    assert result.exit_code == 2
    assert "no plugin makes clusters" in result.stderr
