import pytest

pytest.importorskip("ray", reason="the extra ray is not installed")
