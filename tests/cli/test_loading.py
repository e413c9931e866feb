"""REAL-13: the progress of a load where there is no terminal."""

from io import StringIO

from rich.console import Console

from enginebay.cli.loading import Loading


def test_each_stage_is_one_line_however_its_sizes_grow() -> None:
    text = StringIO()
    loading = Loading(["m"], Console(file=text))
    loading.start()
    for fraction in range(5):
        loading.report("m", f"loading weights: {50 * fraction} of 200 MB", fraction / 5)
    loading.report("another", "starting", 0)
    loading.report("m", "ready", 1)
    loading.stop()
    assert text.getvalue() == "m: loading weights: 0 of 200 MB\nm: ready\n"
