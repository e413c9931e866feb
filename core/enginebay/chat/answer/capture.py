"""Captures requests and the raw model output, for `enginebay replay`."""

import json
import logging
import os
import re
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from enginebay.chat.answer.capture_format import JoinedParts, Written, written_delta
from enginebay.chat.answer.recipe import CollectorRecipe
from enginebay.contract.types import Delta, Part

logger = logging.getLogger(__name__)

MAX_BYTES = 10_000_000
"""Maximum file size; longer answers are cut off, which the last line records."""


class Captures:
    """A folder with one file per request, readable by its owner only; the oldest are deleted first.

    A separate thread writes each file when its request has ended.
    """

    def __init__(self, folder: Path, max_files: int) -> None:
        self._folder = folder
        self._max_files = max_files
        self._writing = ThreadPoolExecutor(1, "enginebay-capture")

    def begin(self, id: str, recipe: CollectorRecipe, asked: Written) -> "Capture":
        """A file for this request; `asked` describes the request, without any key."""
        return Capture(self, id, {**asked, "id": id, "recipe": asdict(recipe)})

    def write(self, id: str, lines: list[str]) -> None:
        """Schedule a file to be written."""
        self._writing.submit(self._write, id, lines)

    def close(self) -> None:
        """Wait until all files are written."""
        self._writing.shutdown()

    def _write(self, id: str, lines: list[str]) -> None:
        at = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        plain = re.sub(r"[^A-Za-z0-9-]", "_", id)[:64]
        path = self._folder / f"{at}-{plain}-{secrets.token_hex(4)}.jsonl"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123  (a descriptor)
                file.writelines(f"{line}\n" for line in lines)
            for old in sorted(self._folder.glob("*.jsonl"))[: -self._max_files]:
                old.unlink(missing_ok=True)
        except OSError as error:
            logger.error("the request %s could not be captured: %s", id, error)


class Capture:
    """One captured request: what was asked, the model's output, and the parsed parts."""

    def __init__(self, captures: Captures, id: str, asked: Written) -> None:
        self._captures = captures
        self._id = id
        self._began = time.monotonic()
        self._joined: dict[int, JoinedParts] = {}
        self._lines: list[str] = []
        self._bytes = 0
        self._cut_off = False
        self._add({"request": asked})

    def delta(self, choice: int, delta: Delta, parts: list[Part]) -> None:
        """Record a delta and the parts parsed from it."""
        seconds = round(time.monotonic() - self._began, 4)
        self._add({"choice": choice, "at": seconds, "delta": written_delta(delta)})
        self._joined.setdefault(choice, JoinedParts()).add(parts)

    def end(self, outcome: str) -> None:
        """Write the capture."""
        answer = {str(choice): joined.parts for choice, joined in sorted(self._joined.items())}
        end = {"outcome": outcome, "cut_off": self._cut_off, "answer": answer}
        if self._cut_off:
            end["answer"] = {}
        self._lines.append(json.dumps(end))
        self._captures.write(self._id, self._lines)

    def _add(self, line: Written) -> None:
        text = json.dumps(line, default=str)
        self._bytes += len(text)
        if self._bytes > MAX_BYTES:
            self._cut_off = True
        if not self._cut_off:
            self._lines.append(text)
