"""EXL2 models, GPTQ ones and plain float16 folders, run on NVIDIA GPUs by ExLlamaV2.

`loading` makes an `engine` of a folder. Only what it imports at its top may be imported without
exllamav2; the rest imports `library`, which imports that.
"""

from enginebay_exllamav2.backend import register_backends as register_backends
