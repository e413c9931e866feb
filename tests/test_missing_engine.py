"""A machine without torch: the server starts and says which extra to install."""

import subprocess
import sys

from tests.support import DEMO_MODEL, REPOSITORY

CODE = f"""
import asyncio, sys
sys.modules["torch"] = None  # as if it were not installed
from core.app import create_app
from core.config.schema import Config
from core.plugins import Plugins

model = {{"name": "m", "backend": "hf", "path": {str(DEMO_MODEL)!r}}}
app = create_app(Config.model_validate({{"models": [model]}}), Plugins())
asyncio.run(app.state.models.load())
[model] = app.state.models.all()
print(model.state, model.error)
"""


def test_a_missing_library_is_named() -> None:
    result = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert result.stdout.startswith("failed")
    assert "pip install 'enginebay[hf]'" in result.stdout
