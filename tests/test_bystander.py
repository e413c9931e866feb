"""Whether the bystander notices what it is there to notice."""

import threading
import time
from collections.abc import Iterator

import pytest

from tests import bystander as module
from tests.bystander import Bystander, bystander, paused
from tests.support import plugins_with, scripted, scripted_config


class Work:
    """Something that a request asks for."""

    @staticmethod
    def run() -> None:
        """Take no time but what a test adds."""

    @staticmethod
    async def long() -> None:
        """Compute for 0.2 s and more."""
        end = time.thread_time() + 0.25
        while time.thread_time() < end:
            pass


@pytest.fixture(name="watching")
def _watching() -> Iterator[Bystander]:
    with bystander(scripted_config(), plugins_with(scripted=scripted(["ok"]))) as watching:
        yield watching


def test_the_stream_goes_on_next_to_other_requests(watching: Bystander) -> None:
    watching.advance(3)
    assert watching.server.http.get("/v1/models").status_code == 200
    watching.advance(3)


def test_work_on_the_event_loop_is_noticed(
    watching: Bystander, monkeypatch: pytest.MonkeyPatch
) -> None:
    with paused(monkeypatch, Work, "run") as pause:
        watching.server.loop.call_soon_threadsafe(lambda: Work.run())
        pause.entered()
        monkeypatch.setattr(module, "PATIENCE", 0.01)
        with pytest.raises(AssertionError, match="late"):
            watching.advance()
        monkeypatch.undo()


def test_work_on_a_thread_is_not_in_the_way(
    watching: Bystander, monkeypatch: pytest.MonkeyPatch
) -> None:
    with paused(monkeypatch, Work, "run") as pause:
        worker = threading.Thread(target=lambda: Work.run())
        worker.start()
        pause.entered()
        watching.advance(3)
        pause.go_on()
        worker.join()


def test_a_long_turn_of_the_event_loop_is_measured(watching: Bystander) -> None:
    with watching.measured() as turns:
        watching.advance(3)
        short = turns.longest
        watching.server.run(Work.long())
        watching.advance()
    assert turns.longest > 0.2 > short
