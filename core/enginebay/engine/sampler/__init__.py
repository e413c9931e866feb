"""Sampling in numpy, from logits to a token: all sampling params, the same on every engine.

`row_sampler` combines the other modules.
"""
