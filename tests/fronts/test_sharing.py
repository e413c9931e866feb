"""What a server takes from its config, and what it leaves alone without `share_limits`."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

from enginebay.config.schema import Config
from enginebay.config.wing_sections import whole_config
from enginebay_cluster.fronts.sharing import ledger_files
from tests.support import REPOSITORY


def config(**server: Any) -> Config:
    return whole_config().model_validate({"server": server})


def test_files_of_the_ledger_are_those_of_the_config(tmp_path: Path) -> None:
    written = config(usage_file=str(tmp_path / "usage.db"), response_store="answers.db")
    files = pickle.loads(pickle.dumps(ledger_files(written)))
    assert files.usage == str(tmp_path / "usage.db")
    assert files.store.store == str(written.base / "answers.db")
    assert Path(files.store.store).is_absolute()


def test_what_is_in_memory_stays_there() -> None:
    files = ledger_files(config(usage_file="off", response_store="memory"))
    assert (files.usage, files.store.store) == (None, "memory")
    limits = {"response_store_entries": 5, "response_store_days": 2}
    files = ledger_files(config(response_store="off", **limits))
    assert files.store.store == "off"
    assert files.store.store_entries == 5


def test_a_server_that_shares_nothing_loads_none_of_it() -> None:
    # SCALE-1
    code = (
        "import sys, enginebay.server.app; "
        "from enginebay.config.wing_sections import whole_config; "
        "from enginebay.plugins import Plugins; "
        "config = whole_config().model_validate({'cluster': {}}); "
        "enginebay.server.app.create_app(config, Plugins()); "
        "assert not [name for name in sys.modules if name.startswith('enginebay_cluster.fronts')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)


def test_limits_are_shared_without_the_api_whose_answers_are() -> None:
    code = (
        "import asyncio, sys; sys.modules['enginebay_responses'] = None; "
        "from enginebay.config.schema import Config; "
        "from enginebay_cluster.fronts.ledger import Ledger; "
        "from enginebay_cluster.fronts.sharing import ledger_files, share\n"
        "async def run():\n"
        "    assert share(Config(), None).response_store is None\n"
        "    await Ledger(ledger_files(Config())).close()\n"
        "asyncio.run(run())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)
