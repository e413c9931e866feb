"""From a row of logits to a token, in numpy: every sampling param, the same on every engine.

`row_sampler` is the whole; the others are its parts.
"""
