"""The quants of models, such as Q4_K_M, in the names of files and as people type them."""

import re
from pathlib import PurePosixPath

ORDER = (
    *("Q4_K_M", "Q4_0", "Q4_K_XL", "Q4_K_L", "Q4_K_S", "IQ4_XS", "IQ4_NL", "MXFP4_MOE", "MXFP4"),
    *("Q4_K", "Q4_1", "Q4", "Q5_K_M", "Q5_K_S", "Q5_K_XL", "Q5_K_L", "Q5_0", "Q5_K", "Q5_1", "Q5"),
    *("Q6_K", "Q6_K_L", "Q6_K_XL", "Q6", "Q8_0", "Q8_K_XL", "Q8", "Q3_K_M", "Q3_K_L", "Q3_K_XL"),
    *("IQ3_M", "Q3_K_S", "IQ3_S", "IQ3_XS", "IQ3_XXS", "Q3_K", "Q2_K", "Q2_K_L", "Q2_K_XL"),
    *("Q2_K_S", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "TQ2_0", "TQ1_0", "IQ1_M", "IQ1_S"),
    *("safetensors", "pytorch", "BF16", "F16", "F32"),
)
"""What is taken of several models when none is named: four bits first, then more, then fewer, and
16 bits only of what has nothing else."""

_QUANT = re.compile(
    r"(?<![a-z0-9])(?:UD-)?"
    r"(?:I?Q[1-8](?:_(?:[01]|K|KS|KSS|KT|XXS|XS|S|M|L|XL|NL|4|8))*|TQ[12]_0|I2_S|MXFP4(?:_MOE)?|NVFP4"
    r"|BF16|FP?16|FP?32)(?![a-z0-9])",
    re.IGNORECASE,
)
_MADE_BY = re.compile(r"UD-", re.IGNORECASE)  # of unsloth, before a quant


def quant_of(stem: str) -> str:
    """The quant that a file's name ends with, or that of its folder; "" without one."""
    for part in reversed(PurePosixPath(stem).parts):
        if found := _QUANT.findall(part):
            return spelled(found[-1])
    return ""


def model_words(stem: str) -> set[str]:
    """The words of a file's name that say which model it is, or belongs to."""
    text = _QUANT.sub(" ", PurePosixPath(stem).name).lower()
    return set(re.findall(r"[a-z0-9]+", text)) - {"mmproj", "model"}


def is_quant(name: str) -> bool:
    """Whether a name is only a quant, so that the others are the same model in others."""
    return name in ORDER or _QUANT.fullmatch(name) is not None


def spelled(name: str) -> str:
    """As quants are compared: in capitals, with one name for 16 and 32 bits."""
    return re.sub(r"\bFP(?=16\b|32\b)", "F", name.upper().removesuffix(".GGUF"))


def bare(name: str) -> str:
    """A quant as `spelled`, without who made it."""
    return _MADE_BY.sub("", spelled(name))


def preference(name: str) -> tuple[int, bool]:
    """Lower is what is rather recommended, of quants and of the other names in `ORDER`."""
    plain = _MADE_BY.sub("", name)
    return ORDER.index(plain) if plain in ORDER else len(ORDER), name != plain
