"""What the backends ask of their libraries: how they wait, how far a load is, what is missing."""

import os

from enginebay import BackendUnavailableError


def spin(turns: int) -> None:
    """Set how long the threads of a matrix product spin for each other before they sleep.

    By default libgomp, which torch and llama.cpp compute with, has them spin for milliseconds, with
    the effect that one other busy program on the machine makes decoding several times slower.
    Tokens/s of 2 threads on 2 cores, with such a program beside them, by turns: torch, 16 streams:
    218 with 1,000, 125 with 10,000, 21 with 100,000; llama.cpp, 4 streams: 77 with 1,000, 47 with
    10,000, 26 with 30,000. On a quiet machine torch is as fast with 1,000 turns, llama.cpp is a
    twentieth slower with 10,000 than with 100,000, and a tenth with 1,000. Read when the library is
    loaded; who sets it in the environment has their way.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", str(turns))


def loaded_of(stage: str, fraction: float, size: int) -> str:
    """A stage of a load with the sizes: `loading weights: 120 of 253 MB`."""
    done = min(fraction, 1.0) * size
    if size >= 10**10:
        return f"{stage}: {done / 10**9:.1f} of {size / 10**9:.1f} GB"
    return f"{stage}: {done / 10**6:.0f} of {size / 10**6:.0f} MB"


def missing(name: str, libraries: str, error: ImportError) -> BackendUnavailableError:
    """The error for libraries that are not installed, with the extra that has them."""
    return BackendUnavailableError(
        f"the {name} backend needs {libraries} ({error}); "
        f"install it with: python3 start.py install {name}, or without a checkout: "
        f"pip install 'enginebay[{name}]'"
    )
