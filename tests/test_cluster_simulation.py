"""The simulated cluster keeps time as engines do, and the page about it shows its results."""

import json
from dataclasses import asdict, fields

import pytest

from benchmarks import cluster_simulation, report
from benchmarks.cluster_simulation import limits, simulate_chats, with_tables
from benchmarks.cluster_simulation_chats import Arrivals, ChatFigures, Figures, simulate
from benchmarks.cluster_simulation_engines import BLOCK, Clock, Engine, Machine, Request
from benchmarks.cluster_simulation_limits import (
    PARTS,
    SETUPS,
    Costs,
    IndexCost,
    Load,
    Setup,
    full_at,
    measure_index,
    shares,
)
from benchmarks.cluster_simulation_routing import POLICIES
from tests.support import REPOSITORY

PAGE = REPOSITORY / "docs" / "internals" / "routing.md"
SMALL = Arrivals(rate=0.25, seconds=120)
INDEX = [
    IndexCost(engines=size, remember=1875, memory_bytes=size * 700_000, choose_s=size * 2e-6)
    for size in (10, 100, 1000)
]


@pytest.fixture(name="results", scope="module")
def _results() -> report.Json:
    results: report.Json = json.loads(cluster_simulation.RESULTS.read_text(encoding="utf-8"))
    return results


@pytest.fixture(name="small", scope="module")
def _small() -> dict[str, Figures]:
    return {policy: simulate(policy, 4, SMALL) for policy in POLICIES}


def chats(**changes: object) -> ChatFigures:
    """Of a machine with round numbers: 20 ms a step, 1 ms a prompt token."""
    settings: dict[str, object] = {
        **{"replicas": 1, "chats": 1, "turns": 1, "prompt_tokens": 100, "answer_tokens": 10},
        **{"step_s": 0.02, "prefill_s_per_token": 0.001, "batch": 4, "cache_tokens": 10_000},
    }
    return simulate_chats(**{**settings, **changes})  # type: ignore[arg-type]


def engine(machine: Machine) -> tuple[Clock, Engine]:
    """One that keeps prompts only."""
    clock = Clock()
    return clock, Engine(machine, clock, lambda request: None, lambda request: request.blocks)


def request(answer: int, prompt: int = 10, sent: float = 0.0) -> Request:
    return Request(0, prompt, (), answer, sent)


def test_two_turns_of_one_chat_take_what_they_take_by_hand() -> None:
    seen = chats(turns=2)
    first = 0.02 + 100 * 0.001
    # The second prompt is 100 + 10 + 100 tokens; three whole blocks of the 110 before are cached.
    second = 0.02 + (210 - 96) * 0.001
    assert seen.requests == 2
    assert (seen.prompt_tokens, seen.cached_tokens, seen.answer_tokens) == (310, 96, 20)
    assert seen.first_p50 == pytest.approx((first + second) / 2)
    assert seen.first_p99 == pytest.approx(second)
    assert seen.wall_s == pytest.approx(first + second + 2 * 9 * 0.02)
    assert seen.tokens_s == pytest.approx(20 / seen.wall_s)
    assert seen.by_engine == (2,)


def test_thinking_and_the_way_to_the_engine_take_their_time() -> None:
    plain, slow = chats(turns=3), chats(turns=3, think_s=1.0, transport_s=0.5)
    assert slow.wall_s == pytest.approx(plain.wall_s + 2 * 1.0 + 3 * 0.5)
    assert slow.first_p50 == pytest.approx(plain.first_p50 + 0.5)


def test_a_prompt_takes_as_many_steps_as_its_budget_makes_of_it() -> None:
    # 100 tokens, 40 a step: three steps, and a token at the end of the third.
    assert chats(prefill_budget=40, answer_tokens=1).wall_s == pytest.approx(3 * 0.02 + 0.1)


def test_who_finds_the_batch_full_waits_for_the_first_that_ends() -> None:
    seen = chats(chats=3, batch=2, prefill_s_per_token=0.0)
    assert seen.wall_s == pytest.approx(2 * 10 * 0.02)
    assert seen.first_p99 == pytest.approx(11 * 0.02)
    assert chats(chats=3, max_running=1, prefill_s_per_token=0.0).wall_s == pytest.approx(0.6)


def test_a_request_begins_with_the_next_step_of_those_that_run() -> None:
    clock, busy = engine(Machine(step_s=1.0, decode_s=0.0, prefill_s=0.0))
    long, late = request(answer=10), request(answer=2, sent=3.5)
    busy.add(long)
    clock.at(3.5, lambda: busy.add(late))
    clock.run()
    assert (late.first, late.ended) == (5.0, 6.0)
    assert (long.first, long.ended) == (1.0, 10.0)


def test_steps_that_decode_more_answers_take_longer() -> None:
    clock, busy = engine(Machine(step_s=1.0, decode_s=0.25, prefill_s=0.0))
    both = [request(answer=3), request(answer=2)]
    for each in both:
        busy.add(each)
    clock.run()
    assert [each.ended for each in both] == [1.0 + 1.5 + 1.25, 1.0 + 1.5]


def test_a_cache_that_is_full_forgets_what_was_used_longest_ago() -> None:
    assert chats(turns=5).cached > 0.5
    assert chats(turns=5, cache_tokens=2 * BLOCK).cached == 0.0


def test_chats_share_what_a_system_prompt_has_in_common() -> None:
    alone, shared = chats(chats=4), chats(chats=4, system_tokens=64)
    assert alone.cached_tokens == 0
    assert shared.cached_tokens == 3 * 64


def test_chats_stay_where_they_are_known() -> None:
    # SCALE-3
    seen = chats(replicas=2, chats=8, turns=4, prompt_tokens=608, batch=8, cache_tokens=60_000)
    later = sum(turn * 608 + (turn - 1) * 10 for turn in (1, 2, 3)) * 8
    assert seen.cached_tokens >= 0.9 * later


def test_all_that_is_sent_is_answered_whole() -> None:
    for policy in POLICIES:
        seen = chats(replicas=3, chats=40, turns=3, batch=2, policy=policy)
        assert seen.requests == sum(seen.by_engine) == 120
        assert seen.answer_tokens == 1200
        assert seen.prompt_tokens == 40 * (100 + 210 + 320)
        assert 0 <= seen.cached_tokens < seen.prompt_tokens


def test_the_same_seed_gives_the_same_figures(small: dict[str, Figures]) -> None:
    for policy in ("two choices", "prefix, 4 fronts"):
        assert simulate(policy, 4, SMALL) == small[policy]
        assert simulate(policy, 4, Arrivals(rate=0.25, seconds=120, seed=2)) != small[policy]
    assert chats(policy="random", replicas=3, chats=9) == chats(
        policy="random", replicas=3, chats=9
    )


def test_prefixes_find_more_than_chance_and_one_index_more_than_several(
    small: dict[str, Figures],
) -> None:
    cached = {policy: figures.cached for policy, figures in small.items()}
    assert cached["prefix"] > cached["two choices"] + 0.15
    assert cached["prefix"] > cached["random"] + 0.15
    fronts = [cached[f"prefix, {number} fronts"] for number in (2, 4, 8)]
    assert [cached["prefix"], *fronts] == sorted([cached["prefix"], *fronts], reverse=True)
    assert cached["prefix, 8 fronts, sticky"] > cached["prefix, 8 fronts"]
    assert small["prefix"].first_p50 < small["random"].first_p50


def test_a_prefix_that_all_share_draws_no_crowd(small: dict[str, Figures]) -> None:
    # SCALE-4
    assert small["prefix"].busiest < 2
    shared = chats(replicas=4, chats=32, system_tokens=1024, prompt_tokens=8, batch=16)
    assert max(shared.by_engine) <= 2 * 32 / 4


def test_a_full_index_holds_what_it_is_told_to_remember() -> None:
    cost = measure_index(3, 128, asked=3)
    assert (cost.engines, cost.remember) == (3, 128)
    assert 3 * 128 * 100 < cost.memory_bytes < 3 * 128 * 1000
    assert cost.choose_s > 0


def test_shares_are_what_the_costs_make_of_them() -> None:
    costs, load = Costs(), Load()
    alone = shares(100, Setup(), costs, load, INDEX)
    assert alone == pytest.approx(
        {
            "controller": 0.035 + 0.065,
            "links": 100 * 50 * 0.0004,
            "front": 2.0 + 100 * (1000 * 0.00005 + 4 * 0.005),
            "limits": 0.0,
            "placing": 400 * 2e-4,
            "index memory": 70_000_000 / 2**32,
        }
    )
    shared = shares(100, Setup(window=0.1, engines_a_front=10), costs, load, INDEX)
    assert shared["limits"] == pytest.approx(800 / 720)
    assert shared["placing"] == pytest.approx(400 * (2e-4 + 1 / 720))
    links = 100 * 10 * 0.0004 * (1 - 0.9**25)
    assert shared["links"] == pytest.approx(links)
    assert shared["front"] == pytest.approx(links + 0.7)


def test_a_part_is_full_with_the_fewest_engines_that_fill_it() -> None:
    costs, load = Costs(), Load()
    for part in PARTS:
        engines = full_at(part, Setup(engines_a_front=8), costs, load, INDEX)
        if engines is not None:
            setup = Setup(engines_a_front=8)
            assert shares(engines, setup, costs, load, INDEX)[part] >= 1
            assert shares(engines - 1, setup, costs, load, INDEX)[part] < 1
    assert full_at("limits", Setup(), costs, load, INDEX) is None


def test_the_results_have_every_run_and_limits_follow_from_what_was_measured(
    results: report.Json,
) -> None:
    runs = {(r["engines"], r["seconds"], r["rate"], r["policy"]) for r in results["runs"]}
    assert runs == {
        (plan.engines, plan.seconds, rate, policy)
        for plan in cluster_simulation.PLANS
        for rate in plan.rates
        for policy in plan.policies
    }
    figures = {field.name for field in fields(Figures)}
    assert all(figures < set(row) for row in results["runs"])
    assert results["machine"] == asdict(Machine())
    index = [IndexCost(**cost) for cost in results["index"]]
    costs, load = Costs(**results["costs"]), Load(**results["load"])
    assert results["limits"] == limits(index, cluster_simulation.SIZES, costs, load)
    assert [limit["setup"] for limit in results["limits"]] == list(SETUPS)


def test_the_page_shows_the_results(results: report.Json) -> None:
    text = PAGE.read_text(encoding="utf-8")
    command = "python benchmarks/cluster_simulation.py --print --into docs/internals/routing.md"
    assert with_tables(text, results) == text, f"run: {command}"


def test_the_page_concludes_what_its_tables_show(results: report.Json) -> None:
    runs = {(r["engines"], r["seconds"], r["rate"], r["policy"]): r for r in results["runs"]}
    for plan in cluster_simulation.PLANS:
        for rate in plan.rates:
            at = {
                policy: runs[plan.engines, plan.seconds, rate, policy] for policy in plan.policies
            }
            cached = {policy: row["cached"] for policy, row in at.items()}
            chance, best = cached["two choices"], cached["prefix"]
            # several servers that know nothing of each other lose most of it; sticky ones do not
            assert cached["prefix, 8 fronts"] - chance < 0.4 * (best - chance)
            assert cached["prefix, 8 fronts, sticky"] > best - 0.03
            if "longest prefix" in at:
                assert at["longest prefix"]["first_p99"] > 5 * at["random"]["first_p99"]
    for seconds, sizes in ((1200, (10, 100)), (120, (100, 1000))):
        # the number of engines matters little
        few, many = (runs[size, seconds, 0.25, "prefix"]["cached"] for size in sizes)
        assert many == pytest.approx(few, abs=0.05)


def test_the_page_says_what_is_full_first(results: report.Json) -> None:
    alone, _, many, spread = results["limits"]
    text = PAGE.read_text(encoding="utf-8")
    assert 0.8 < alone["shares"]["10"]["front"] < 1
    assert f"from {many['full_at']['front']} engines on" in text
    first = min((at, part) for part, at in spread["full_at"].items() if at)
    assert first[1] == "limits"
    assert f"Up to about {first[0]} engines" in text
    thousand = spread["shares"]["1000"]
    assert min(thousand["placing"], thousand["limits"]) > 10
    assert 0.5 < thousand["controller"] < 1
    assert thousand["index memory"] < 0.5


def test_a_page_without_a_place_for_a_table_is_told(results: report.Json) -> None:
    with pytest.raises(ValueError, match="table: rates"):
        with_tables("nothing", results)
