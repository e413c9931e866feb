"""EVE-9: llama.cpp's threads do not burn the time of a core that another process uses."""

import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("llama_cpp")

SAYS_ITS_SETTINGS = "OMP_DISPLAY_ENV"
CODE = """
import os
import enginebay_llamacpp.bindings
assert "GOMP_SPINCOUNT" not in os.environ or "ASKED" in os.environ
"""


def spins(**asked: str) -> str:
    """How often a thread looks before it sleeps, as OpenMP says when it is loaded."""
    ours = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
    env = {name: value for name, value in os.environ.items() if name not in ours}
    env |= {SAYS_ITS_SETTINGS: "VERBOSE", **({"ASKED": "1"} if asked else {}), **asked}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=True
    )
    found = re.search(r"GOMP_SPINCOUNT = '([^']*)'", done.stderr)
    if found is None:
        pytest.skip("this llama.cpp was built without libgomp")
    return found[1]


def test_threads_sleep_soon_while_they_wait() -> None:
    assert spins() == "1000"


@pytest.mark.parametrize(
    "asked", [{"GOMP_SPINCOUNT": "777"}, {"OMP_WAIT_POLICY": "active"}], ids=lambda asked: [*asked]
)
def test_the_environment_decides(asked: dict[str, str]) -> None:
    assert spins(**asked) != "1000"
