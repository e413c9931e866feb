"""What must hold of a crowd's requests taken together: limits of keys, usage, nothing left over."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.cluster_crowd_clients import Seen
from benchmarks.cluster_crowd_site import KEYS, NARROW, RATE, RATED, WIDTH, Outage
from benchmarks.crowd_clients import GAUGES
from tests.cluster.site import Front

LOSS = 1.2
"""Seconds of usage that a front may lose when it is killed: it records and hands on twice a second,
and either may just not have been done; and a little for the way."""

_MINUTE = 60.0
_LONGEST = 600
"""More tokens than any prompt has."""

_NUMBERED = re.compile(r"\[\w+ (\d+)\]")


@dataclass(slots=True)
class Run:
    """A request in an engine: its prompt's tokens, when it came, ended, and what it said by then.

    `said` counts the tokens of all choices; None where the engine was killed.
    """

    pid: int
    prompt: int
    began: float
    ended: float = math.inf
    said: int | None = None


Runs = Mapping[int, Sequence[Run]]
"""By the client's number of the request; several where it moved to another engine."""


def runs(events: Path, killed: Mapping[int, float]) -> Runs:
    """What engines wrote down; `killed`: when each of their processes was."""
    found: defaultdict[int, list[Run]] = defaultdict(list)
    open_runs: dict[tuple[int, str], Run] = {}
    for line in events.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "add" and (number := _NUMBERED.search(event["head"])):
            run = Run(event["pid"], event["prompt"], event["time"])
            run.ended = killed.get(run.pid, math.inf)
            found[int(number[1])].append(run)
            open_runs[run.pid, event["id"]] = run
        elif (at := (event["pid"], event.get("id", ""))) in open_runs:
            run = open_runs.pop(at)
            run.ended, run.said = event["time"], event["said"] * event["n"]
    return found


@dataclass(slots=True)
class Checked:
    """What was found; `broken` says what does not hold."""

    broken: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


def check_limits(seen: Sequence[Seen], in_engines: Runs, checked: Checked) -> None:
    """Of the key with a rate and of the one with a width, over all fronts."""
    admitted = sorted(
        (_admitted_by(each, in_engines), each.sent)
        for each in seen
        if each.key == RATED and _admitted_by(each, in_engines) < math.inf
    )
    most = max((_certain(admitted, begin) for _, begin in admitted), default=0)
    checked.figures[f"most in a minute, of {RATE}"] = most
    if most > RATE:
        checked.broken.append(f"{most} requests of {RATED} in a minute, {RATE} are allowed")
    numbers = {each.number for each in seen if each.key == NARROW}
    width = _most_at_once(in_engines, numbers)
    checked.figures[f"most at once, of {WIDTH}"] = width
    if width > WIDTH:
        checked.broken.append(f"{width} requests of {NARROW} at once, {WIDTH} are allowed")


def _admitted_by(seen: Seen, in_engines: Runs) -> float:
    """A time by which it had been let in; infinite if it was refused or nobody knows."""
    times = [run.began for run in in_engines.get(seen.number, ())]
    if seen.status == 200 and seen.admitted:
        times.append(seen.admitted)
    return min(times, default=math.inf)


def _certain(admitted: Iterable[tuple[float, float]], begin: float) -> int:
    """How many were let in within the minute from then, whatever the moment in which each was."""
    return sum(begin <= sent and by < begin + _MINUTE for by, sent in admitted)


def _most_at_once(in_engines: Runs, numbers: Iterable[int]) -> int:
    """The most of these requests that engines had at one moment: all counted, for as long."""
    changes = []
    for number in numbers:
        for run in in_engines.get(number, ()):
            if run.ended < math.inf:
                changes += [(run.began, 1, number), (run.ended, -1, number)]
    here: defaultdict[int, int] = defaultdict(int)
    most = 0
    for _, change, number in sorted(changes, key=lambda each: each[:2]):
        here[number] += change
        most = max(most, sum(count > 0 for count in here.values()))
    return most


@dataclass(slots=True)
class Bounds:
    """The least and the most that may have been counted."""

    least: list[int] = field(default_factory=lambda: [0, 0, 0])
    most: list[int] = field(default_factory=lambda: [0, 0, 0])

    def add(self, least: Sequence[int], most: Sequence[int]) -> None:
        """Of another request."""
        self.least = [a + b for a, b in zip(self.least, least, strict=True)]
        self.most = [a + b for a, b in zip(self.most, most, strict=True)]


_COUNTED = ("requests", "prompt_tokens", "completion_tokens")


def check_usage(
    seen: Sequence[Seen],
    in_engines: Runs,
    outages: Sequence[Outage],
    told: Sequence[Mapping[str, Any]],
    checked: Checked,
) -> None:
    """That `GET /v1/usage` told what clients saw, but for what is not known of cut answers."""
    for key in KEYS:
        bounds = Bounds()
        for each in seen:
            if each.key == key:
                bounds.add(*_bounds(each, in_engines.get(each.number, ()), outages))
        counted = [sum(row[name] for row in told if row["key"] == key) for name in _COUNTED]
        checked.figures[f"usage of {key}"] = {
            name: f"{least} <= {value} <= {most}"
            for name, least, value, most in zip(
                _COUNTED, bounds.least, counted, bounds.most, strict=True
            )
        }
        if not all(
            least <= value <= most
            for least, value, most in zip(bounds.least, counted, bounds.most, strict=True)
        ):
            checked.broken.append(f"usage of {key}: {checked.figures[f'usage of {key}']}")


def _bounds(
    seen: Seen, ran: Sequence[Run], outages: Sequence[Outage]
) -> tuple[Sequence[int], Sequence[int]]:
    """Of one request: requests, prompt tokens, tokens of the answer."""
    if seen.usage:
        most = [1, seen.usage["prompt_tokens"], seen.usage["completion_tokens"]]
        least = most
    elif ran:
        said = [run.said for run in ran]
        all_said = seen.tokens * seen.n if None in said else sum(each or 0 for each in said)
        most = [1, ran[0].prompt, all_said]
        least = [1, ran[0].prompt, seen.received]
    elif seen.unconnected or (seen.error and seen.error.get("code") == "rate_limit_exceeded"):
        return [0, 0, 0], [0, 0, 0]
    else:
        return [0, 0, 0], [1, _LONGEST, 0]
    for outage in outages:
        lost = outage.killed - LOSS
        if outage.front == seen.front and seen.sent <= outage.killed and seen.ended >= lost:
            begun = min((run.began for run in ran), default=math.inf) < lost
            least = [begun, begun * least[1], min(least[2], seen.received_by(lost))]
    return least, most


def left_over(fronts: Sequence[Front]) -> list[str]:
    """What servers and engines still have, when nobody wants anything."""
    found = []
    for number, front in enumerate(fronts):
        for request in front.get("/v1/requests").json()["data"]:
            found.append(f"front {number}: request {json.dumps(request)}")
        for family in text_string_to_metric_families(front.get("/metrics").text):
            for sample in family.samples:
                if sample.name in GAUGES and sample.value:
                    found.append(f"front {number}: {sample.name} {sample.labels} {sample.value}")
        answer = front.get("/v1/cluster").json()
        for engine in answer.get("engines", ()):
            if engine["running"] or engine["waiting"]:
                found.append(f"front {number}: engine {json.dumps(engine)}")
        for model in answer.get("models", [{"ready": 0, "wanted": 1, "error": answer}]):
            if model["ready"] != model["wanted"]:
                found.append(f"front {number}: engines {json.dumps(model)}")
    return found
