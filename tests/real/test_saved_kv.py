"""A conversation with Gemma 3 270M that goes on after a restart of the server. REAL-14"""

from pathlib import Path

import pytest

from tests.real.gemma import STORY, Gemma, cached_tokens, complete
from tests.real.serving import loaded

pytestmark = [pytest.mark.real, pytest.mark.thorough]


def test_saved_kv_is_used_after_a_restart(model: Gemma, tmp_path: Path) -> None:
    key, folder = tmp_path / "secret", tmp_path / "kv"
    key.write_text("0123456789abcdef0123456789abcdef", encoding="utf-8")
    key.chmod(0o600)
    config = model.config(cache_dir=str(folder), cache_key_file=str(key))
    for restarted in (False, True):
        with loaded(config) as server:
            answer = complete(server, STORY)
        assert list(folder.rglob("*.kv"))
        assert (cached_tokens(answer) > 100) == restarted
        model.agreement(STORY, answer)
