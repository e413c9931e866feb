"""Builds the CPU image and tries it as a user would: `python3 containers/try.py`.

Uses docker, or what `--tool` names: `--tool containers/podman.sh` where there is no daemon. Needs
nothing but Python. Other arguments go to the build: `--build-arg EXTRAS=hf` leaves llama.cpp out.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READY_WITHIN = 180  # seconds
STOPPED_WITHIN = 30
HEALTH_CHECK = ["enginebay", "health", "--live"]


def main() -> int:
    """Build, run and check; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", default="docker", help="docker, podman, or a program like them")
    parser.add_argument("--image", help="try this image instead of building one")
    arguments, of_build = parser.parse_known_args()
    tool = Tool(arguments.tool)
    image = arguments.image
    if not image:
        image = "enginebay:cpu"
        began = time.monotonic()
        tool.run("build", "--target", "cpu", "--tag", image, *of_build, str(ROOT), quiet=False)
        print(f"built {image} in {time.monotonic() - began:.0f} s")
    name = f"enginebay-{uuid.uuid4().hex[:8]}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        try_image(tool, image, name, port)
    except AssertionError:
        print(tool.run("logs", name), file=sys.stderr)
        raise
    finally:
        tool.run("rm", "--force", "--volumes", name)
    print(f"{image} works")
    return 0


def try_image(tool: Tool, image: str, name: str, port: int) -> None:
    """Run a container and use it, stop it, start it again."""
    on_port = [f"--env=ENGINEBAY_SERVER__PORT={port}", f"--publish=127.0.0.1:{port}:{port}"]
    began = time.monotonic()
    tool.run("run", "--detach", f"--name={name}", *on_port, image)
    wait_until_ready(tool, name)
    say(f"ready {time.monotonic() - began:.0f} s after `run`")

    inside = tool.run("exec", name, "sh", "-c", "id -u; cat /proc/1/comm; stat -c %u:%a keys.yml")
    assert inside.split() == ["1000", "tini", "1000:600"], inside
    say("runs as user 1000, below tini, and keeps its keys to itself")

    [container] = json.loads(tool.run("inspect", name))
    of_image = container["Config"].get("Healthcheck")  # which images in OCI's format lack
    assert of_image is None or of_image["Test"] == ["CMD", *HEALTH_CHECK], of_image
    said = tool.run("exec", name, *HEALTH_CHECK).splitlines()
    say(f"its health check{'' if of_image else ', which this image lacks,'} says: {said}")

    key = tool.run("exec", name, "enginebay", "keys", "add", "try").strip()
    answer = ask(port, key)
    assert answer, "the demo model answered nothing"
    say(f"the demo model answers: {answer!r}")

    began = time.monotonic()
    tool.run("stop", "--time", "60", name)
    took = time.monotonic() - began
    code = tool.run("inspect", "--format", "{{.State.ExitCode}}", name).strip()
    assert (code, took < STOPPED_WITHIN) == ("0", True), f"exit code {code} after {took:.0f} s"
    say(f"ends with 0, {took:.1f} s after SIGTERM")

    nobodys = tool.refused("run", "--rm", "--user=4321:4321", image)
    assert "must be writable for user 4321" in nobodys, nobodys
    say("tells a user who may not write to the data folder what to do")

    tool.run("start", name)
    wait_until_ready(tool, name)
    assert ask(port, key)
    say("knows the same key when it is started again")


def wait_until_ready(tool: Tool, name: str) -> None:
    """Until the default model can answer, or the time is up."""
    over = time.monotonic() + READY_WITHIN
    while subprocess.run(
        [*tool.command, "exec", name, "enginebay", "health", "--ready"],
        check=False,
        capture_output=True,
    ).returncode:
        assert time.monotonic() < over, f"not ready after {READY_WITHIN} s"
        time.sleep(0.5)


def ask(port: int, key: str) -> str:
    """The demo model's answer to a greeting."""
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 30}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


class Tool:
    """A program with docker's command line."""

    def __init__(self, command: str) -> None:
        self.command = [command]

    def run(self, *arguments: str, quiet: bool = True) -> str:
        """What it prints. Exits with its errors if it fails."""
        pipe = subprocess.PIPE if quiet else None
        done = subprocess.run(
            [*self.command, *arguments], check=False, stdout=pipe, stderr=pipe, text=True
        )
        if done.returncode:
            sys.exit(f"{' '.join([*self.command, *arguments])} failed:\n{done.stderr or ''}")
        return done.stdout or ""

    def refused(self, *arguments: str) -> str:
        """The errors of a command that must fail."""
        done = subprocess.run(
            [*self.command, *arguments], check=False, capture_output=True, text=True
        )
        assert done.returncode, f"{' '.join(arguments)} did not fail"
        return done.stderr


def say(fact: str) -> None:
    """Print a finding."""
    print(f"- {fact}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
