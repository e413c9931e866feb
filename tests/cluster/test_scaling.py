"""Engines that come with the load."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.asking import said, whole
from tests.cluster.site import PLUGINS, replicas, site, until

pytestmark = pytest.mark.thorough


async def test_there_are_more_engines_when_those_that_run_are_busy(tmp_path: Path) -> None:
    model: dict[str, Any] = {
        "name": "talker",
        "backend": "talker",
        "path": str(PLUGINS),
        "cluster": {"replicas": {"min": 1, "max": 2}, "cpus": 0.1},
        "options": {"batch": 4, "step": 0.05, "log": str(tmp_path / "events.jsonl")},
    }
    with site(tmp_path) as here:
        here.configure([model])
        here.up(0, "--cpus", "2")
        front = here.front()
        assert len(replicas("talker")) == 1
        async with front.client() as openai:
            asked = [asyncio.create_task(said(openai, f"{i}", 1500)) for i in range(8)]
            await until(lambda: len({each["pid"] for each in here.happened("add")}) == 2, 120)
            assert len(replicas("talker")) == 2
            assert await asyncio.gather(*asked) == [(whole(1500), None)] * 8
