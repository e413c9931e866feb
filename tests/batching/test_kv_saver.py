"""Sequences that leave their slot and come back: no answer changes, and nobody gets another's."""

import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay import GenerationRequest
from enginebay.engine.batching import kv_saver
from enginebay.engine.batching.runner import RunnerMemory
from enginebay.engine.kv_store.state_file import StateFiles
from enginebay.engine.kv_store.state_folder import StateFolder
from enginebay.engine.kv_store.store import KvStore
from tests.batching.model import CONTEXT, HashEngine, make_engine, request
from tests.batching.test_scheduling import check, held_nothing, requests
from tests.effort import examples
from tests.run import Run

MEMORIES = {
    "tight": RunnerMemory(slots=4, tokens=CONTEXT),
    "shared": RunnerMemory(slots=6, tokens=CONTEXT + 10, shares=True),
    "recurrent": RunnerMemory(slots=2, tokens=2 * CONTEXT, cuts=False),
    "one adapter": RunnerMemory(slots=2, tokens=CONTEXT, one_adapter=True),
    "one slot": RunnerMemory(slots=1, tokens=CONTEXT),
}
ONE_SLOT = RunnerMemory(slots=1, tokens=CONTEXT)
LONG = list(range(2, 42))


@pytest.fixture(autouse=True, scope="module")
def _short_sequences_are_worth_it() -> Iterator[None]:
    """The model's contexts are of 64 tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_saver, "_WORTH_KEEPING", 3)
        yield


def folder(path: Path, files: StateFiles | None = None) -> StateFolder:
    return StateFolder(path, "hash", {"model": "hash"}, files or StateFiles(), 1 << 30)


def cached(run: Run, id: str) -> int:
    return sum(delta.cached_tokens for delta in run.deltas[id, 0])


def ask(engine: HashEngine, item: GenerationRequest) -> int:
    """Run it alone; how many of its tokens were cached."""
    run = Run(engine, item).finish()
    check(run, item)
    return cached(run, item.request_id)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("where", ["ram", "little ram", "disk", "both"])
@examples(25)
@given(arrivals=requests(), again=requests(), aborted=st.sets(st.integers(0, 6)))
def test_traffic_never_changes_an_answer(
    memory: str,
    where: str,
    arrivals: list[tuple[int, GenerationRequest]],
    again: list[tuple[int, GenerationRequest]],
    aborted: set[int],
) -> None:
    """Also over a restart of the engine, if there is a folder (ENG-8)."""
    chosen = MEMORIES[memory]
    ram = {"ram": 1 << 20, "little ram": 2000, "disk": 0, "both": 1 << 20}[where]
    with TemporaryDirectory() as path:
        for traffic in (arrivals, again):
            there = folder(Path(path)) if where in ("disk", "both") else None
            store = KvStore(ram, there, cuts=chosen.cuts)
            engine = make_engine(chosen, kv_store=store)
            run = Run(engine)
            kept = []
            for number, (wait, item) in enumerate(traffic):
                if memory == "one slot" and item.n > 1:
                    continue
                run.steps(wait)
                run.add(item)
                if number in aborted:
                    run.steps(2)
                    run.abort(item.request_id)
                else:
                    kept.append(item)
            run.finish()
            assert not run.errors
            for item in kept:
                check(run, item)
                first = run.deltas[item.request_id, 0][0]
                assert first.prefill_tokens + first.cached_tokens == len(item.prompt_token_ids)
                assert first.prefill_tokens > 0
            assert held_nothing(engine)
            assert not engine._saver._readings  # type: ignore[union-attr]
            engine.close()


def test_a_conversation_goes_on_after_others_had_its_slot() -> None:
    engine = make_engine(ONE_SLOT, kv_store=KvStore(1 << 20, None, cuts=True))
    assert ask(engine, request(LONG)) == 0
    assert ask(engine, request([7] * 30)) == 0
    assert ask(engine, request([*LONG, 5, 6])) == len(LONG)
    assert engine.stats().tokens_restored == len(LONG)
    assert engine.stats().sequences_saved == 2
    assert engine.stats().saved_ram
    assert make_engine(ONE_SLOT).stats().saved_ram is None


def test_a_conversation_goes_on_after_a_restart(tmp_path: Path) -> None:
    engine = make_engine(kv_store=KvStore(0, folder(tmp_path), cuts=True))
    assert ask(engine, request(LONG, max_tokens=6)) == 0
    engine.close()
    engine = make_engine(kv_store=KvStore(0, folder(tmp_path), cuts=True))
    assert ask(engine, request([*LONG, 3, 4, 5])) == len(LONG)
    assert engine.stats().saved_disk
    engine.close()


@pytest.mark.parametrize(
    "other",
    [{"cache_salt": "mine"}, {"cache_salt": ""}, {"adapter": "tuned"}, {"adapter": "other"}],
)
def test_no_other_salt_or_adapter_gets_it(other: dict[str, str], tmp_path: Path) -> None:
    """ENG-8: in both directions, over a restart as well."""
    store = KvStore(1 << 20, folder(tmp_path), cuts=True)
    engine = make_engine(ONE_SLOT, kv_store=store)
    assert ask(engine, request(LONG)) == 0
    assert ask(engine, request(LONG, **other)) == 0
    assert ask(engine, request(LONG)) == len(LONG) - 1
    assert ask(engine, request(LONG, **other)) == len(LONG) - 1
    engine.close()
    for first, second in (({}, other), (other, {})):
        engine = make_engine(ONE_SLOT, kv_store=KvStore(0, folder(tmp_path), cuts=True))
        assert ask(engine, request(LONG, cache_salt=f"new {first}")) == 0
        assert ask(engine, request(LONG, **first)) == len(LONG) - 1
        assert ask(engine, request(LONG, **second)) == len(LONG) - 1
        engine.close()


def test_an_adapter_that_is_another_one_now_gets_nothing(tmp_path: Path) -> None:
    for weights, expected in (("a", 0), ("b", 0), ("a", len(LONG) - 1)):
        engine = make_engine(kv_store=KvStore(0, folder(tmp_path), cuts=True))
        engine._runner.fingerprint = lambda name, w=weights: w  # type: ignore[attr-defined]
        assert ask(engine, request(LONG, adapter="tuned")) == expected
        engine.close()


def test_a_state_that_the_model_does_not_take_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = make_engine(ONE_SLOT, kv_store=KvStore(1 << 20, None, cuts=True))
    ask(engine, request(LONG))
    ask(engine, request([7] * 30))
    engine._runner.refuses = True  # type: ignore[attr-defined]
    assert ask(engine, request(LONG)) == 0
    assert caplog.text.count("could not be restored") == 1
    engine._runner.refuses = False  # type: ignore[attr-defined]
    assert ask(engine, request([7] * 30)) == 29


class Gated(StateFiles):
    """Reads when told to."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "gate", threading.Event())
        object.__setattr__(self, "reads", [])

    def state(self, *arguments: object) -> memoryview:
        self.reads.append(arguments)  # type: ignore[attr-defined]
        assert self.gate.wait(30)  # type: ignore[attr-defined]
        return super().state(*arguments)  # type: ignore[arg-type]


def test_others_run_while_a_file_is_read(tmp_path: Path) -> None:
    engine = make_engine(kv_store=KvStore(0, folder(tmp_path), cuts=True))
    ask(engine, request(LONG))
    engine.close()
    files = Gated()
    engine = make_engine(kv_store=KvStore(0, folder(tmp_path, files), cuts=True))
    run = Run(engine, request([*LONG, 3], id="waits"), request([*LONG, 4], id="second"))
    other = request([9] * 20, id="other")
    run.add(other)
    run.steps(20)
    assert run.deltas["other", 0][-1].finish_reason
    assert not run.deltas["waits", 0]
    run.abort("waits")
    run.steps(3)
    files.gate.set()  # type: ignore[attr-defined]
    run.finish()
    check(run, other)
    check(run, request([*LONG, 4], id="second"))
    assert cached(run, "second") == len(LONG)
    engine.close()


def test_a_file_is_not_read_where_computing_is_cheaper(tmp_path: Path) -> None:
    engine = make_engine(kv_store=KvStore(0, folder(tmp_path), cuts=True))
    ask(engine, request(LONG))
    engine.close()
    store = KvStore(0, folder(tmp_path), cuts=True)
    engine = make_engine(kv_store=store)
    store.read_speed = 1.0  # bytes a second
    engine._saver._token_seconds = 1e-6  # type: ignore[union-attr]
    assert ask(engine, request([*LONG, 3])) == 0
    engine.close()
    store = KvStore(0, folder(tmp_path), cuts=True)
    engine = make_engine(kv_store=store)
    store.read_speed = 1e12
    engine._saver._token_seconds = 1.0  # type: ignore[union-attr]
    assert ask(engine, request([*LONG, 3])) == len(LONG)
    engine.close()


def test_what_nobody_waits_for_any_more_is_not_read(tmp_path: Path) -> None:
    engine = make_engine(kv_store=KvStore(0, folder(tmp_path), cuts=True))
    for first in (3, 4, 5):
        ask(engine, request([first, *LONG[:30]]))
    engine.close()
    files = Gated()
    engine = make_engine(kv_store=KvStore(0, folder(tmp_path, files), cuts=True))
    impatient = [request([first, *LONG[:30], 7], id=f"id {first}") for first in (3, 4)]
    run = Run(engine)
    for item in impatient:
        run.add(item)
        run.steps(2)
        run.abort(item.request_id)
    patient = request([5, *LONG[:30], 7])
    run.add(patient)
    run.steps(2)
    files.gate.set()  # type: ignore[attr-defined]
    run.finish()
    check(run, patient)
    assert cached(run, patient.request_id) == 31
    assert len(files.reads) <= 2  # type: ignore[attr-defined]
    engine.close()


def test_nobody_waits_for_a_disk_that_hangs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(kv_store=KvStore(0, folder(tmp_path), cuts=True))
    ask(engine, request(LONG))
    engine.close()
    files = Gated()
    now = [0.0]
    store = KvStore(0, folder(tmp_path, files), cuts=True)
    engine = make_engine(kv_store=store)
    engine._saver._clock = lambda: now[0]  # type: ignore[union-attr]
    first, second = (request([*LONG, last], id=f"id {last}") for last in (3, 4))
    run = Run(engine, first, second)
    run.steps(5)
    assert not any(run.deltas.values())
    now[0] = 60.0
    run.finish()
    check(run, first)
    check(run, second)
    assert cached(run, "id 3") == 0
    assert ask(engine, request([*LONG[:30], 5], adapter=None)) == 30  # of what was computed
    assert caplog.text.count("takes too long to read") == 1
    files.gate.set()  # type: ignore[attr-defined]
    store.close(1e9)
    engine.close()


def test_a_disk_is_not_slow_for_ever(tmp_path: Path) -> None:
    engine = make_engine(kv_store=KvStore(0, folder(tmp_path), cuts=True))
    ask(engine, request(LONG))
    engine.close()
    now = [0.0]
    engine = make_engine(kv_store=KvStore(0, folder(tmp_path), cuts=True, clock=lambda: now[0]))
    store, saver = engine._saver._store, engine._saver  # type: ignore[union-attr]
    store.read_speed, saver._token_seconds = 1.0, 1e-6
    assert ask(engine, request([*LONG[:35], 3])) == 0
    engine._slots.clear()
    store.read_speed, saver._token_seconds = 1.0, 1e-6
    now[0] = 100.0
    assert ask(engine, request([*LONG, 3])) == len(LONG)


def test_what_runs_when_the_engine_closes_is_saved_too(tmp_path: Path) -> None:
    engine = make_engine(kv_store=KvStore(0, folder(tmp_path), cuts=True))
    Run(engine, request(LONG, max_tokens=20)).steps(6)
    engine.close()
    engine = make_engine(kv_store=KvStore(0, folder(tmp_path), cuts=True))
    assert ask(engine, request([*LONG, 3])) == len(LONG)
    engine.close()


def test_another_answer_to_the_same_prompt_saves_nothing() -> None:
    engine = make_engine(ONE_SLOT, kv_store=KvStore(1 << 20, None, cuts=True))
    for _ in range(3):
        ask(engine, request(LONG, max_tokens=20))
    assert engine.stats().sequences_saved == 0
    assert ask(engine, request([*LONG[:30], 5])) == 30  # but a branch does
    assert engine.stats().sequences_saved == 1


def test_prompt_logprobs_are_of_tokens_that_are_run(tmp_path: Path) -> None:
    engine = make_engine(ONE_SLOT, kv_store=KvStore(1 << 20, None, cuts=True))
    ask(engine, request(LONG))
    ask(engine, request([7] * 30))
    assert ask(engine, request(LONG, prompt_logprobs=0)) == 0
