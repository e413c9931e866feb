"""ExLlamaV2's vision towers on the device: what tiny models see is what transformers says.

Nothing here has run on a GPU yet; as a rehearsal it runs on the CPU, over the stand-in.
"""

from pathlib import Path

import pytest

from enginebay import BackendSettings
from enginebay_exllamav2.options import ExLlamaV2Options
from tests.backends.exllamav2_asking import Model, ask, check_logprobs
from tests.backends.exllamav2_seeing import FAMILIES, picture
from tests.gpu.targets import MAIN, Target, params
from tests.run import Run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.parametrize(
        "target", params([t for t in MAIN if t.engine == "exllamav2"]), indirect=True
    ),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_alone_in_company_and_cached(target: Target, family: str, tmp_path: Path) -> None:
    if family == "gemma3" and not target.options.get("paged", True):
        pytest.skip("the sliding windows of Gemma 3 need a paged cache or flash-attn")

    def load(folder: Path, **options: object) -> object:
        from enginebay_exllamav2.loading import load_engine

        chosen = ExLlamaV2Options.model_validate({**target.options, **options})
        settings = BackendSettings(
            name="sees", path=str(folder), options=chosen, isolation="thread"
        )
        return load_engine(settings)

    model = Model(tmp_path, family, load)
    asked = [
        ask(model.engine, ["see ", picture(1), " and ", picture(2, 64, 32)], id="two", logprobs=0),
        ask(model.engine, [picture(3), "what?"], id="first", logprobs=0),
        ask(model.engine, ["the quick brown fox"], id="text", logprobs=0),
    ]
    try:
        for runs in ([[each] for each in asked], [asked]):
            for together in runs:
                run = Run(model.engine, *together).finish()
                assert not run.errors
                for each in together:
                    check_logprobs(model, run, each, bound=target.bound)
    finally:
        model.engine.close()
