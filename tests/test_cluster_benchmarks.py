"""The benchmarks of clusters find what they look for."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cluster
from benchmarks.cluster_crowd_checks import (
    LOSS,
    Checked,
    Run,
    check_limits,
    check_usage,
    runs,
)
from benchmarks.cluster_crowd_clients import Seen, judged
from benchmarks.cluster_crowd_site import NARROW, RATE, RATED, WIDTH, Outage
from benchmarks.cluster_engine import Options, Paced
from benchmarks.cluster_routing import Plan, simulated
from enginebay import Delta, GenerationRequest, SamplingParams
from tests.support import REPOSITORY


def seen(number: int = 1, **more: Any) -> Seen:
    known: dict[str, Any] = {
        "key": "ann",
        "front": 0,
        "model": "even",
        "tokens": 4,
        "n": 1,
        "stream": True,
        "sent": 100.0,
        "ended": 101.0,
        "status": 200,
        "admitted": 100.1,
    }
    return Seen(number=number, **(known | more))


USAGE = {"prompt_tokens": 10, "completion_tokens": 4}
WHOLE: dict[str, Any] = {
    "done": True,
    "texts": {0: "baba"},
    "finishes": {0: "length"},
    "usage": USAGE,
}


@pytest.mark.parametrize(
    ("more", "outcome"),
    [
        ({}, "whole"),
        ({"texts": {0: "bab"}}, "broken: .* have not 4 tokens"),
        ({"done": False}, r"broken: a stream without \[DONE\]"),
        ({"finishes": {}}, "broken: finish reasons"),
        ({"finishes": {0: "abort"}}, "cancelled"),
        ({"usage": USAGE | {"completion_tokens": 3}}, "broken: usage"),
        (
            {"error": {"code": "engine_dead", "message": "m", "type": "server_error"}},
            "engine_dead in the stream",
        ),
        ({"error": {"code": None, "message": "m", "type": "t"}}, "broken: status 200"),
        (
            {"status": 500, "error": {"code": "engine_dead", "message": "m", "type": "t"}},
            "broken: status 500",
        ),
    ],
)
def test_what_becomes_of_a_request(more: dict[str, Any], outcome: str) -> None:
    assert re.match(outcome, judged(seen(**WHOLE | more)))


def test_a_rate_that_does_not_hold_is_seen() -> None:
    def most(gap: float) -> Checked:
        checked = Checked()
        requests = [
            seen(i, key=RATED, sent=100 + i * gap, admitted=100.1 + i * gap)
            for i in range(RATE + 1)
        ]
        check_limits(requests, {}, checked)
        return checked

    assert most(60 / RATE).broken == []
    [text] = most(59 / RATE).broken
    assert text.startswith(f"{RATE + 1} requests of {RATED} in a minute")


def test_a_width_that_does_not_hold_is_seen() -> None:
    def most(end: float) -> list[str]:
        checked = Checked()
        ran = {i: [Run(1, 10, 100.0 + i, end + i)] for i in range(WIDTH + 1)}
        check_limits([seen(i, key=NARROW) for i in ran], ran, checked)
        return checked.broken

    assert most(100.0 + WIDTH) == []
    assert most(100.1 + WIDTH) == [f"{WIDTH + 1} requests of {NARROW} at once, {WIDTH} are allowed"]


def usage(requests: int, prompt: int, completion: int, key: str = "ann") -> dict[str, Any]:
    return {
        "key": key,
        "requests": requests,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
    }


@pytest.mark.parametrize(
    ("told", "holds"), [((1, 10, 4), True), ((2, 10, 4), False), ((1, 10, 3), False)]
)
def test_usage_is_what_clients_were_told(told: tuple[int, int, int], holds: bool) -> None:
    checked = Checked()
    check_usage([seen(**WHOLE)], {}, [], [usage(*told)], checked)
    assert (checked.broken == []) is holds


@pytest.mark.parametrize(("completion", "holds"), [(1, False), (2, True), (3, True), (4, False)])
def test_usage_of_a_cut_answer(completion: int, holds: bool) -> None:
    checked = Checked()
    cut = seen(texts={0: "ba"}, pieces=[(100.5, 2)])
    ran = {1: [Run(1, 10, 100.0, 100.9, 3)]}
    check_usage([cut], ran, [], [usage(1, 10, completion)], checked)
    assert (checked.broken == []) is holds


def test_a_front_that_was_killed_may_lose_what_came_last() -> None:
    ran = {1: [Run(1, 10, 100.0, math.inf)]}
    cut = seen(texts={0: "bab"}, pieces=[(100.2, 1), (100.9, 2)], ended=101.0)
    for killed, least in ((100.2 + LOSS, (1, 10, 1)), (100.0, (0, 0, 0)), (103.0, (1, 10, 3))):
        checked = Checked()
        check_usage([cut], ran, [Outage(0, killed)], [usage(*least)], checked)
        assert checked.broken == []
        if least[2]:
            fewer = usage(1, 10, least[2] - 1)
            check_usage([cut], ran, [Outage(0, killed)], [fewer], checked)
            assert checked.broken


def test_what_engines_wrote_down(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    lines: list[dict[str, Any]] = [
        {"event": "start", "pid": 7, "time": 1.0},
        {"event": "add", "pid": 7, "time": 2.0, "id": "a", "prompt": 9, "head": "<user>[ann 5] x"},
        {"event": "add", "pid": 7, "time": 3.0, "id": "b", "prompt": 9, "head": "[bob 6] x"},
        {"event": "end", "pid": 7, "time": 4.0, "id": "a", "n": 2, "said": 3},
        {"event": "add", "pid": 8, "time": 5.0, "id": "b", "prompt": 9, "head": "[bob 6] x"},
    ]
    events.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert runs(events, {7: 4.5}) == {
        5: [Run(7, 9, 2.0, 4.0, 6)],
        6: [Run(7, 9, 3.0, 4.5), Run(8, 9, 5.0)],
    }


def request(id: str, text: str, tokens: int) -> GenerationRequest:
    prompt = tuple(map(ord, text))
    sampling = SamplingParams(max_tokens=tokens)
    return GenerationRequest(request_id=id, prompt_token_ids=prompt, sampling=sampling)


def told(engine: Paced) -> list[tuple[str, str, int]]:
    found = []
    for id, delta in engine.step():
        assert isinstance(delta, Delta)
        found.append((id, delta.text, delta.cached_tokens))
    return found


def test_the_engine_keeps_the_rules_of_the_simulation() -> None:
    engine = Paced(Options(step=0, batch=1, cache=64))
    engine.add_request(request("a", "x" * 64, 2))
    engine.add_request(request("b", "x" * 64, 1))
    assert told(engine) == [("a", "b", 0)]
    assert told(engine) == [("a", "a", 0)]
    assert told(engine) == [("b", "b", 32)]  # one token at least is computed
    engine.add_request(request("c", "y" * 64, 1))
    engine.add_request(request("d", "x" * 65, 1))
    assert told(engine) == [("c", "b", 0)]
    assert told(engine) == [("d", "b", 0)]  # what was used longest ago is gone
    engine.add_request(request("e", "x", 9))
    told(engine)
    engine.abort_request("e")
    assert told(engine) == []


def test_chats_are_simulated_as_they_are_drawn() -> None:
    plan = Plan(2, 6)
    script = plan.script(1)
    figures = simulated(plan, script, 0.0)
    assert figures["requests"] == 6 * plan.turns
    said = [each for turns in script for each in turns]
    assert figures["prompt_tokens"] > sum(each.prompt for each in said)
    assert 0.5 < figures["cached"] < 1


def test_verdicts() -> None:
    def row(server: str, number: int, speed: float, cpu: float) -> dict[str, Any]:
        return {
            "round": number,
            "server": server,
            "streams": 64,
            "tokens_per_second": speed,
            "front_us": cpu,
        }

    def of(speed: float, cpu: float, millis: float) -> list[bool]:
        rows = [row("process", 0, 1000, 10), row("cluster", 0, speed, cpu)]
        left = [{"server": "cluster", "left_ms": each} for each in (1.0, millis)]
        found = cluster.verdicts({"paths": rows, "faults": {"left": left}})
        return [each["holds"] for each in found.values()]

    assert of(900, 25, 120) == [True, True, True]
    assert of(899, 26, 121) == [False, False, False]


def test_what_is_promised_of_clusters_was_measured() -> None:  # SCALE-16
    """And so were the bounds of SCALE-5, 8 and 9, and what the simulation says of routing."""
    results = json.loads(cluster.RESULTS.read_text(encoding="utf-8"))
    assert cluster.verdicts(results) == results["verdicts"]
    assert len(results["verdicts"]) == 5 + 3 * len(results["routing"])
    assert all(each["holds"] for each in results["verdicts"].values())
    assert results["versions"]["ray"]


def test_the_guide_shows_what_was_measured() -> None:
    results = json.loads(cluster.RESULTS.read_text(encoding="utf-8"))
    guide = (REPOSITORY / "docs" / "internals" / "cluster-costs.md").read_text(encoding="utf-8")
    for table in cluster.tables(results):
        assert table in guide


def test_the_guide_tells_what_became_of_the_crowd() -> None:
    path = cluster.RESULTS.with_name("cluster_crowd.json")
    results = json.loads(path.read_text(encoding="utf-8"))
    assert (results["broken"], results["left_over"], results["grown"]) == ([], [], [])
    assert (results["clients"], results["minutes"]) == (32, 5)
    guide = (REPOSITORY / "docs" / "internals" / "cluster-costs.md").read_text(encoding="utf-8")
    total = sum(results["outcomes"].values())
    assert f"what became of {total:,} requests" in guide
    assert f"| whole answers | {results['outcomes']['whole']:,} |" in guide
