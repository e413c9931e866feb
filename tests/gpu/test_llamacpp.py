"""llama.cpp computes on the device, not silently beside it."""

import pytest

from tests.gpu.targets import device, require

pytestmark = [pytest.mark.gpu, pytest.mark.llamacpp]


def test_this_build_has_a_device() -> None:
    require("llamacpp")
    import llama_cpp

    assert llama_cpp.llama_supports_gpu_offload() == (device() == "cuda")
