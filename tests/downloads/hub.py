"""A small Hugging Face hub: its API for one repository, its files, and what can go wrong."""

import asyncio
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "tests/tiny"
TOKEN = "hf_test_token"


@dataclass
class FakeHub:
    """The repository `repo`: `files` by name; those in `lfs` are redirected to another host, as
    large ones are.

    `breaks`: after how many bytes of a file its connections break, one number a connection.
    `serves`: other content than what the hub says the file has. `sizes`, `digests`: what it says in
    the place of the truth. `status`, `code`: how it refuses everything. `gates`: connections of a
    file stay open until they are set, and `reached` says that one does. `refusals`: the statuses
    that a file is refused with, one a request, before it is given out. `xet`: hashes of files that
    come from the Xet store at `xet_store`. `branches`: their files, by names of branches. `found`:
    what every search finds, as the hub's API has it; `searched` what was asked for. `says`: what
    its API answers in the place of all this.
    """

    files: dict[str, bytes]
    lfs: set[str] = field(default_factory=set)
    breaks: dict[str, list[int]] = field(default_factory=dict)
    serves: dict[str, bytes] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    code: str = ""
    ranges: bool = True
    commit: str = COMMIT
    url: str = ""
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    gates: dict[str, threading.Event] = field(default_factory=dict)
    reached: threading.Event = field(default_factory=threading.Event)
    refusals: dict[str, list[int]] = field(default_factory=dict)
    xet: dict[str, str] = field(default_factory=dict)
    xet_store: str = ""
    repo: str = REPO
    branches: dict[str, dict[str, bytes]] = field(default_factory=dict)
    found: Any = field(default_factory=list)
    searched: list[str] = field(default_factory=list)
    says: bytes | None = None

    @property
    def fetched(self) -> list[tuple[str, str | None]]:
        """Name and range of each file that was asked for, in order."""
        return [
            (found[1], range_)
            for path, range_, _ in self.asked
            if (found := re.search(r"/(?:cdn|resolve/\w+)/(.+)", path))
            and (found[0].startswith("/cdn") or found[1] not in self.lfs)
        ]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        path = scope["path"]
        self.asked.append((path, headers.get("range"), headers.get("authorization")))
        if "/xet-read-token/" in path:
            access = {"accessToken": "xet", "exp": 2**32, "casUrl": self.xet_store}
            await answer(send, 200, json.dumps(access).encode(), {})
        elif path == "/api/models":
            self.searched.append(scope["query_string"].decode())
            await self._say(send, self.found)
        elif path.endswith("/refs"):
            names = ["main", *self.branches]
            refs = [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": COMMIT} for n in names]
            await self._say(send, {"branches": refs, "converts": [], "tags": []})
        elif path.startswith("/api/models/"):
            await self._api(path, send)
        elif path.startswith("/cdn/"):
            await self._file(path.removeprefix("/cdn/"), headers.get("range"), send)
        else:
            await self._resolve(path, headers, send)

    async def _say(self, send: Any, body: Any) -> None:
        if self.status != 200:
            await answer(send, self.status, b"", {"X-Error-Code": self.code})
            return
        said = json.dumps(body).encode() if self.says is None else self.says
        await answer(send, 200, said, {"Content-Type": "application/json"})

    async def _api(self, path: str, send: Any) -> None:
        siblings = []
        revision = path.partition("/revision/")[2] or "main"
        for name, content in self.branches.get(revision, self.files).items():
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            sha = hashlib.sha256(content).hexdigest()
            sibling: dict[str, Any] = {
                "rfilename": name,
                "size": self.sizes.get(name, len(content)),
                "blobId": self.digests.get(name, blob),
            }
            if name in self.lfs:
                sibling["lfs"] = {"sha256": sha, "size": len(content), "pointerSize": 1}
            siblings.append(sibling)
        commit = commit_of(revision) if revision in self.branches else self.commit
        body = {"id": self.repo, "sha": commit, "siblings": siblings, "tags": [], "downloads": 0}
        await self._say(send, body)

    async def _resolve(self, path: str, headers: dict[str, str], send: Any) -> None:
        repo, _, rest = path.removeprefix("/").partition("/resolve/")
        assert repo == self.repo
        commit, _, name = rest.partition("/")
        branches = {commit_of(branch): files for branch, files in self.branches.items()}
        assert commit in (COMMIT, *branches)
        if commit in branches:
            await answer(send, 200, branches[commit][name], {})
            return
        if name in self.lfs:
            elsewhere = self.url.replace("127.0.0.1", "localhost") + f"/cdn/{name}"
            xet = {"X-Xet-Hash": self.xet[name], "X-Xet-Refresh-Route": "/"} if self.xet else {}
            await answer(send, 302, b"", {"Location": elsewhere, **xet})
        else:
            await self._file(name, headers.get("range"), send)

    async def _file(self, name: str, range_: str | None, send: Any) -> None:
        if refusals := self.refusals.get(name):
            await answer(send, refusals.pop(0), b"", {})
            return
        content = self.serves.get(name, self.files[name])
        start = int(range_.removeprefix("bytes=").rstrip("-")) if range_ and self.ranges else 0
        if start and start >= len(content):
            await answer(send, 416, b"", {"Content-Range": f"bytes */{len(content)}"})
            return
        headers = {"Content-Length": str(len(content) - start), "ETag": '"x"'}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        await begin(send, 206 if start else 200, headers)
        breaks = self.breaks.get(name)
        end = breaks.pop(0) if breaks else len(content)
        if gate := self.gates.get(name):
            await send(
                {"type": "http.response.body", "body": content[start:end], "more_body": True}
            )
            self.reached.set()
            await asyncio.to_thread(gate.wait, 60)
            return
        # With less than was promised, uvicorn closes the connection.
        await send({"type": "http.response.body", "body": content[start:end], "more_body": False})


def commit_of(branch: str) -> str:
    """The newest commit of a branch beside `main`."""
    return hashlib.sha1(branch.encode()).hexdigest()


async def begin(send: Any, status: int, headers: dict[str, str]) -> None:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def answer(send: Any, status: int, body: bytes, headers: dict[str, str]) -> None:
    await begin(send, status, {"Content-Length": str(len(body)), **headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class _Server(uvicorn.Server):
    up: threading.Event

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.up.set()


@contextmanager
def running(hub: FakeHub) -> Iterator[FakeHub]:
    """Let the hub answer, at `hub.url`, until the block ends."""
    server = _Server(uvicorn.Config(hub, port=0, log_config=None, lifespan="off"))
    server.up = threading.Event()
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert server.up.wait(60)
        hub.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        yield hub
    finally:
        for gate in hub.gates.values():
            gate.set()
        server.should_exit = True
        thread.join()
