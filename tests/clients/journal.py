"""What the server's plugin `journal` wrote: the requests that reached a model, and their ends."""

import json
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Asked:
    """One request to a model.

    `media`: the types of the pictures in it. `outcome` is None while it runs; `closed`: it was
    aborted.
    """

    id: str
    prompt: str
    max_tokens: int | None
    logprobs: int | None
    media: tuple[str, ...]
    outcome: str | None = None
    tokens: int = 0


class Journal:
    """Reads the file anew each time."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.write_text("", encoding="utf-8")

    def asked(self) -> list[Asked]:
        """All requests so far, in the order in which they came."""
        entries = [json.loads(line) for line in self.file.read_text(encoding="utf-8").splitlines()]
        ends = {entry["id"]: entry for entry in entries if entry["event"] == "end"}
        return [
            Asked(
                entry["id"],
                entry["prompt"],
                entry["max_tokens"],
                entry["logprobs"],
                tuple(entry["media"]),
                ends.get(entry["id"], {}).get("outcome"),
                ends.get(entry["id"], {}).get("tokens", 0),
            )
            for entry in entries
            if entry["event"] == "begin"
        ]

    def last(self, seconds: float = 10) -> Asked:
        """The last request, when all have ended. Raises `AssertionError` if one goes on."""
        until = time.monotonic() + seconds
        while not (asked := self.asked()) or any(each.outcome is None for each in asked):
            assert time.monotonic() < until, f"still running after {seconds} s"
            time.sleep(0.1)
        return asked[-1]
