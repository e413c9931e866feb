"""What a request is told that a model failed on."""

import traceback

from enginebay.contract.errors import OutOfMemoryError, ServingError

_SIGNS = ("out of memory", "can't allocate memory", "failed to allocate", "cannot allocate memory")
"""What torch, CUDA and ggml say, in errors of no class of their own."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether memory was short: Python's, or a library's in whatever form."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return any(sign in text for sign in _SIGNS)


def failure(error: Exception, what: str) -> ServingError:
    """The error of a request that the model failed on alone; `what`: at what, as "this request".

    A 503 with what to lower if memory was short, else a 500. What the error's frames hold is let
    go, so that the memory is there for others.
    """
    reason = f"{type(error).__name__}: {error}"
    traceback.clear_frames(error.__traceback__)
    if not ran_out_of_memory(error):
        return ServingError(f"the model failed on {what}: {reason}")
    return OutOfMemoryError(
        f"there was not enough memory for {what} ({reason}); send less at once, or lower "
        "max_batch_size, batch_tokens, context_length or cache_tokens in the model's options"
    )
