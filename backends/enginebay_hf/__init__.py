"""Any causal language model of transformers: continuous batching over its native cache.

Models that generate nothing are in `pooling`.

`loading` makes an `engine` of a folder. A step of the engine: the `scheduler` decides what runs,
`the `runner` runs it, `sampling` picks a token per row, and each row's `completion` turns it into
`text.
"""

from enginebay_hf.backend import register_backends as register_backends
