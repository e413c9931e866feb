"""Without a cluster nothing of one is there: no import, no key in the way."""

import os
import subprocess
import sys

from tests.support import REPOSITORY

SERVED = """
import asyncio, sys
from enginebay.config.schema import Config
from enginebay_cluster.contract import Cluster
from enginebay.plugins import Plugins
from enginebay.server.app import create_app
from enginebay.server.services import services_of

app = create_app(Config.model_validate({"models": []}), Plugins())
assert services_of(app).find(Cluster) is None
found = {name.partition(".")[0] for name in sys.modules}
assert not {"ray", "grpc", "google"} & found, found
assert not [name for name in sys.modules if name.startswith("enginebay_cluster.ray")]
assert not [name for name in sys.modules if name.startswith("enginebay_cluster.fronts")]
"""
BLOCKED = """
import sys
sys.modules["ray"] = None
from enginebay_cluster import make_cluster
from enginebay_cluster.settings import ClusterConfig
from enginebay.plugins import Plugins
from pathlib import Path

cluster = make_cluster(ClusterConfig().settings(Path.cwd()), Plugins())
print(cluster.missing())
"""


def run(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
        env=environment,
    ).stdout


def test_a_server_without_a_cluster_imports_nothing_of_one() -> None:  # SCALE-1
    run(SERVED)


def test_without_the_library_it_is_said_what_to_install() -> None:  # SCALE-1
    assert "pip install 'enginebay[ray]'" in run(BLOCKED)
