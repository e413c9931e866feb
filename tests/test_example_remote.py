"""`examples/enginebay-remote`, tested as its author would: on its own, with Enginebay beside it."""

import os
import subprocess
import sys

import pytest

from tests.support import REPOSITORY

pytest.importorskip("tokenizers")


def test_its_own_tests_pass() -> None:
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=REPOSITORY / "examples" / "enginebay-remote",
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
