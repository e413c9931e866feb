"""Any causal language model of transformers: continuous batching over its native cache.

`loading` makes an `engine` of a folder. A step of the engine: the `scheduler` says what runs, the
`runner` runs it, `sampling` picks a token a row, and each row's `completion` makes text of it.
"""
