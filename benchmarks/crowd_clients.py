"""What the clients of a crowd do, who disturbs them meanwhile, and what comes of it."""

import asyncio
import json
import random
import secrets
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.crowd_server import MODELS, change_config

KEYS = 8
LEAVING = 0.3
"""Share of clients that leave before their answer has ended."""

GAUGES = frozenset(
    f"enginebay:{name}"
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "engine_choices_running",
        "engine_choices_waiting",
        "kv_cache_used_tokens",
    )
)
"""What must be 0 when nobody asks for anything."""

CLEAR = {400, 401, 403, 404, 429, 499, 503}


class Crowd:
    """What the clients do and what comes of it; keys by name, of which `gone` are not known."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.admin = f"eb-{secrets.token_hex(32)}"
        self.keys = [f"eb-{secrets.token_hex(32)}" for _ in range(KEYS)]
        self.outcomes: Counter[str] = Counter()
        self.broken: list[str] = []
        self.left_over: list[str] = []
        self.over = False
        self._file = folder / "keys.yml"
        self._random = random.Random(seed)
        self._running: set[str] = set()
        self._as_admin = {"Authorization": f"Bearer {self.admin}"}
        self.write_keys()

    def write_keys(self, gone: int | None = None) -> None:
        """The keys file, without one of the keys."""
        entries = [_entry("admin", "admin", self.admin)]
        entries += [
            _entry(f"user{number}", "user", key)
            for number, key in enumerate(self.keys)
            if number != gone
        ]
        new = self._file.with_suffix(".new")
        new.write_text("\n".join(["keys:", *entries, ""]), encoding="utf-8")
        new.chmod(0o600)
        new.replace(self._file)

    async def client(self, http: httpx2.AsyncClient) -> None:
        """One client after the other, until it is over."""
        while not self.over:
            try:
                outcome = await self._request(http)
            except httpx2.TransportError as error:
                outcome = f"broken: {type(error).__name__}: {error}"
            self.outcomes[outcome.partition(":")[0]] += 1
            if outcome.startswith("broken"):
                self.broken.append(outcome)

    async def _request(self, http: httpx2.AsyncClient) -> str:
        draw = self._random
        stream = draw.random() < 0.7
        body: dict[str, Any] = {
            "model": draw.choice(MODELS),
            "max_tokens": draw.randint(1, 120),
            "stream": stream,
            "n": draw.choice((1, 1, 1, 2)),
            "ignore_eos": True,
        }
        if chat := draw.random() < 0.6:
            body["messages"] = [{"role": "user", "content": f"Tell {draw.random()}"}]
        else:
            body["prompt"] = f"Once {draw.random()} " * draw.randint(1, 20)
        id = secrets.token_hex(8)
        headers = {"Authorization": f"Bearer {draw.choice(self.keys)}", "X-Request-Id": id}
        leave_after = draw.uniform(0, 3) if draw.random() < LEAVING else None
        path = "/v1/chat/completions" if chat else "/v1/completions"
        self._running.add(id)
        try:
            async with asyncio.timeout(leave_after):
                async with http.stream("POST", path, json=body, headers=headers) as response:
                    text = (await response.aread()).decode()
                    return _judged(response.status_code, text, stream, body["n"])
        except TimeoutError:
            return "left by the client"
        finally:
            self._running.discard(id)

    async def switch_models(self, http: httpx2.AsyncClient, every: float) -> None:
        """Unload and load models, one after the other."""
        while not self.over:
            await asyncio.sleep(every * self._random.uniform(0.5, 1.5))
            name = self._random.choice(MODELS)
            for action in ("unload", "load"):
                path = f"/v1/models/{name}/{action}"
                response = await http.post(path, headers=self._as_admin, timeout=120)
                self.outcomes[f"model {action}, {response.status_code}"] += 1

    async def change_keys(self, every: float) -> None:
        """Take one of the keys out of the file, and put it back."""
        while not self.over:
            await asyncio.sleep(every)
            self.write_keys(gone=self._random.randrange(KEYS))
            self.outcomes["keys changed"] += 1

    async def reload_config(self, http: httpx2.AsyncClient, config: Path, every: float) -> None:
        """Change a model's options, and whether another is there; have the server read it."""
        while not self.over:
            await asyncio.sleep(every)
            change_config(config, self._random)
            response = await http.post("/v1/config/reload", headers=self._as_admin, timeout=120)
            self.outcomes[f"config reload, {response.status_code}"] += 1
            if response.status_code != 200:
                self.broken.append(f"config reload: {response.text}")

    async def cancel(self, http: httpx2.AsyncClient, every: float) -> None:
        """Cancel a running request."""
        while not self.over:
            await asyncio.sleep(every)
            if self._running:
                id = self._random.choice(sorted(self._running))
                response = await http.post(f"/v1/requests/{id}/cancel", headers=self._as_admin)
                self.outcomes[f"cancel, {response.status_code}"] += 1

    async def ask_every_model(self, http: httpx2.AsyncClient) -> None:
        """One answer of each, so that all are loaded."""
        for name in MODELS:
            body = {"model": name, "prompt": "Once", "max_tokens": 4}
            for _ in range(60):
                response = await http.post("/v1/completions", json=body, headers=self._as_admin)
                if response.status_code == 200:
                    break
                await asyncio.sleep(1)
            else:
                raise SystemExit(f"{name} does not answer: {response.text}")

    async def look_for_left_overs(self, http: httpx2.AsyncClient) -> None:
        """What the server still counts a while after the last client has left."""
        for _ in range(50):
            text = (await http.get("/metrics", headers=self._as_admin)).text
            samples = [
                sample
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            ]
            self.left_over = [
                f"{sample.name} {sample.labels} {sample.value}"
                for sample in samples
                if sample.name in GAUGES and sample.value
            ]
            if not self.left_over:
                break
            await asyncio.sleep(0.2)


def _entry(name: str, role: str, key: str) -> str:
    return f"  - {{name: {name}, role: {role}, hash: 'sha256:{sha256(key.encode()).hexdigest()}'}}"


def _judged(status: int, text: str, stream: bool, choices: int) -> str:
    """What became of a request whose response has ended by itself."""
    if status != 200:
        error = _error(text)
        if status in CLEAR and error:
            return f"error {status}"
        return f"broken: status {status}: {text[:300]}"
    if not stream:
        finishes = [choice["finish_reason"] for choice in json.loads(text)["choices"]]
        return _ending(finishes, choices, text)
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    if not events or events.pop() != "[DONE]":
        return f"broken: a stream without [DONE]: {text[-300:]}"
    finishes = []
    for event in map(json.loads, events):
        if "error" in event:
            return "error in the stream"
        finishes += [c["finish_reason"] for c in event["choices"] if c["finish_reason"]]
    return _ending(finishes, choices, text)


def _ending(finishes: list[str | None], choices: int, text: str) -> str:
    if len(finishes) != choices or None in finishes:
        return f"broken: finish reasons {finishes} of {choices} choices: {text[-300:]}"
    return "ended by the server" if "abort" in finishes else "whole"


def _error(text: str) -> bool:
    try:
        return bool(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return False
