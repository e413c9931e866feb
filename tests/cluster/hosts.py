"""Machines for tests of clusters: each has its own network, processes, name and shared memory.

They are namespaces of Linux on one bridge, in which the tests have an address, too. Their files are
those of this machine, but for what Ray keeps in /tmp/ray. Only root can make them.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

# It ends when whoever started it has ended, and all else on its machine with it.
_INIT = """
import signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that nobody stays a zombie
print("up", flush=True)
sys.stdin.read()
"""

_BOOT = """
set -e
name=$0 folder=$1 python=$2 init=$3
hostname "$name"
printf '127.0.0.1 localhost %s\\n' "$name" > "$folder/hosts-of-$name"
mount --bind "$folder/hosts-of-$name" /etc/hosts
mkdir -p /tmp/ray
mount -t tmpfs tmpfs /tmp/ray
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
exec "$python" -c "$init"
"""


class Host:
    """One of them, at `address`. Its processes end with it, as when its power is cut."""

    def __init__(self, name: str, address: str, folder: Path, bridge: str, cable: str) -> None:
        self.name = name
        self.address = address
        self._folder = folder
        self._bridge = bridge
        self._cable = cable
        self._power: subprocess.Popen[str] | None = None
        self._init = 0

    @property
    def is_on(self) -> bool:
        """Whether it was turned on, and not off since."""
        return self._power is not None

    def boot(self) -> None:
        """Turn it on; nothing runs there yet."""
        own = ("--net", "--pid", "--mount", "--mount-proc", "--uts", "--fork", "--kill-child")
        self._power = subprocess.Popen(
            ["unshare", *own, "sh", "-c", _BOOT, self.name, self._folder, sys.executable, _INIT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._power.stdout
        assert self._power.stdout.readline() == "up\n", f"{self.name} does not start"
        [init] = psutil.Process(self._power.pid).children()
        self._init = init.pid
        *_, network, number = map(int, self.address.split("."))
        # The address of a card stays that of its machine, which others remember.
        card = f"02:45:42:00:{network:02x}:{number:02x}"
        peer = ("peer", "name", "eth0", "address", card, "netns", str(self._init))
        _ip("link", "add", self._cable, "type", "veth", *peer)
        _ip("link", "set", self._cable, "master", self._bridge, "up")
        for command in (
            ("address", "add", f"{self.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
        ):
            subprocess.run(
                ["nsenter", f"--net=/proc/{self._init}/ns/net", "ip", *command], check=True
            )

    def command(self, argv: Sequence[str], folder: Path) -> list[str]:
        """What runs a program there, in a folder."""
        where = ("--net", "--pid", "--mount", "--uts")
        run = ("sh", "-c", 'cd "$0" && exec "$@"', str(folder))
        return ["nsenter", f"--target={self._init}", *where, "--", *run, *argv]

    def processes(self) -> list[psutil.Process]:
        """All that run there, but for the first."""
        here = _space(self._init)
        pids = [pid for pid in psutil.pids() if pid != self._init and _space(pid) == here]
        found = []
        for pid in pids if here else []:
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
        return found

    def replicas(self, model: str) -> list[psutil.Process]:
        """The processes of a model's engines there."""
        found = []
        for process in self.processes():
            with suppress(psutil.Error):
                if f"ServeReplica:enginebay-{model}:" in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def freeze(self) -> None:
        """No process there does anything, but connections stay."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """They go on."""
        here = _space(self._init)
        for process in self.processes():
            # `nsenter`, which is not there, has stopped itself when its program was stopped.
            for each in (process, process.parent()):
                if each and (each is process or _space(each.pid) != here):
                    with suppress(psutil.NoSuchProcess):
                        each.send_signal(signal.SIGCONT)

    def unplug(self) -> None:
        """Nothing comes in or goes out."""
        _ip("link", "set", self._cable, "down")

    def plug_in(self) -> None:
        """It is part of the network again."""
        _ip("link", "set", self._cable, "up")

    def turn_off(self) -> None:
        """Kill all that runs there. Those at the other ends of its connections are told."""
        if self._power is None:
            return
        self._power.kill()
        self._power.wait()
        for pipe in (self._power.stdin, self._power.stdout):
            assert pipe
            pipe.close()
        # The last process to go takes the network with it.
        while _lives(self._init):
            time.sleep(0.02)
        subprocess.run(["ip", "link", "delete", self._cable], stderr=subprocess.DEVNULL)
        self._power = None


class Network:
    """A switch for machines, whose ends are named after this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"eb{os.getpid()}"
        self._prefix = f"10.77.{os.getpid() % 255}"
        self._hosts: list[Host] = []

    def host(self, name: str) -> Host:
        """A machine that is turned on."""
        number = len(self._hosts) + 1
        cable = f"{self._name}c{number}"
        host = Host(name, f"{self._prefix}.{number}", self._folder, self._name, cable)
        self._hosts.append(host)
        host.boot()
        return host

    def begin(self) -> None:
        """Have a bridge, with an address of the tests."""
        _ip("link", "add", self._name, "type", "bridge")
        _ip("address", "add", f"{self._prefix}.254/24", "dev", self._name)
        _ip("link", "set", self._name, "up")

    def turn_off(self) -> None:
        """All machines."""
        for host in self._hosts:
            host.turn_off()

    def end(self) -> None:
        """Turn everything off, and leave nothing behind."""
        self.turn_off()
        _ip("link", "delete", self._name)


@contextmanager
def network(folder: Path) -> Iterator[Network]:
    """One that ends with the block; `folder`: for files of its machines."""
    here = Network(folder)
    here.begin()
    try:
        yield here
    finally:
        here.end()


def cannot_be_made() -> str | None:
    """Why there can be no machines here; None if there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "machines made of namespaces need Linux and root"
    for program in ("ip", "unshare", "nsenter"):
        if not shutil.which(program):
            return f"machines made of namespaces need the program {program}"
    own = ("--net", "--pid", "--mount", "--uts", "--fork")
    tried = subprocess.run(
        ["unshare", *own, "sh", "-c", "mount -t tmpfs t /dev/shm; ip link add a0 type bridge"],
        capture_output=True,
        text=True,
    )
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else None


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _space(pid: int) -> str | None:
    """The namespace of a process's number; None if it is gone."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
