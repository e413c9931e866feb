"""What exllamav2 requires of a machine, checked in the order in which it can be fixed.

`import exllamav2` on a machine that lacks something ends deep inside torch, or silently compiles
for minutes. So everything is checked first; each error says one thing to do.
"""

import importlib.util
import re
import sys
from importlib import metadata

from enginebay import BackendUnavailableError
from enginebay_exllamav2.build import built_extension, missing_compiler

_DOCS = "docs/guides/exllamav2.md"


def check_library(*, build_extension: bool) -> None:
    """Raise a `BackendUnavailableError` for the first thing that is missing.

    With `build_extension`, tools to compile with stand in for a compiled extension. A build that
    torch has cached is put on the module search path.
    """
    _check_package()
    _check_torch()
    _check_wheel()
    if importlib.util.find_spec("exllamav2_ext") is not None:
        return
    if (extension := built_extension()) is not None:
        sys.path.append(str(extension.parent))
    elif not build_extension:
        raise _missing(
            "its compiled CUDA extension (exllamav2_ext): set build_extension: true in the model's "
            "options to compile it once, which takes minutes and needs the CUDA toolkit"
        )
    elif (tool := missing_compiler()) is not None:
        raise _missing(f"{tool}, to compile its CUDA extension")


def _check_package() -> None:
    install = (
        "install it with: python3 start.py install exllamav2, or without a checkout: "
        "pip install 'enginebay[exllamav2]'"
    )
    try:
        found = metadata.version("exllamav2")
    except metadata.PackageNotFoundError:
        raise _missing(f"the package exllamav2: {install}") from None
    numbers = found.partition("+")[0].split(".")  # a wheel's is 0.3.2+cu128.torch2.7.0
    if [int(number) for number in numbers if number.isdigit()] < [0, 3, 2]:
        raise _missing(f"exllamav2 0.3.2, but {found} is installed: {install}")


def _check_torch() -> None:
    import torch

    if not (torch.version.cuda or torch.version.hip):
        raise _missing(
            f"torch for CUDA, but torch {torch.__version__} is built for CPUs only: install the "
            "build for your GPU (https://pytorch.org/get-started/locally)"
        )
    if not torch.cuda.is_available():
        raise _missing(
            f"a CUDA device, but torch {torch.__version__} sees none: check that nvidia-smi lists "
            "one and that CUDA_VISIBLE_DEVICES does not hide it, or use another backend"
        )


def _check_wheel() -> None:
    """A release wheel has an extension that only the torch it names can load."""
    import torch

    found = metadata.version("exllamav2")
    built = re.search(r"torch(\d+\.\d+)", found)  # a wheel's is 0.3.2+cu128.torch2.9.0
    if built and not torch.__version__.startswith(f"{built[1]}."):
        raise _missing(
            f"an extension compiled for torch {torch.__version__}, and exllamav2 {found} has one "
            f"for torch {built[1]}: pip install --force-reinstall --no-deps exllamav2==0.3.2, and "
            "set build_extension: true in the model's options"
        )


def _missing(what: str) -> BackendUnavailableError:
    return BackendUnavailableError(f"the exllamav2 backend needs {what}; see {_DOCS}")
