"""The demo model sees on the device what it sees on the CPU, alone and in company."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.gpu.engines import device_options
from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from tests.gpu.targets import SIZES, device, require
from tests.support import SEEING_MODEL, Server, serve
from tests.test_demo_sees import COLOUR, SHAPE, WHAT, answer, drawn, says

pytestmark = pytest.mark.gpu
THINGS = [(shape, colour) for shape in ("circle", "square") for colour in ("red", "blue", "green")]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("hf", marks=pytest.mark.hf),
        pytest.param("llamacpp", marks=pytest.mark.llamacpp),
    ],
)
def seeing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    require(request.param)
    path, options = SEEING_MODEL, {**SIZES, **device_options(request.param, device())}
    if request.param == "llamacpp":
        path = gguf(tmp_path_factory.mktemp("pair"))
    model = {"name": "enginebay-demo", "backend": request.param, "path": str(path)}
    config = Config.model_validate({"models": [{**model, "options": options}]})
    with serve(config, Plugins()) as server:
        yield server


def gguf(folder: Path) -> Path:
    pytest.importorskip("gguf")
    from demo.to_gguf import convert
    from demo.to_mmproj import convert_mmproj

    convert(SEEING_MODEL, folder / "demo.gguf", "f16")
    convert_mmproj(SEEING_MODEL, folder / "mmproj-demo.gguf")
    return folder / "demo.gguf"


def test_it_sees(seeing: Server) -> None:
    for shape, colour in THINGS:
        assert answer(seeing, says(drawn(shape, colour), COLOUR)) == f"It is {colour}."
        assert answer(seeing, says(drawn(shape, colour), SHAPE)) == f"It is a {shape}."


def test_in_company(seeing: Server) -> None:
    alone = [answer(seeing, says(drawn(*thing), WHAT)) for thing in THINGS]

    async def together() -> list[str]:
        async with seeing.async_openai() as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model="enginebay-demo",
                        messages=[says(drawn(*thing), WHAT)],
                        temperature=0,
                        max_tokens=24,
                    )
                    for thing in THINGS
                )
            )
        return [str(each.choices[0].message.content).strip() for each in answers]

    assert seeing.run(together()) == alone
