"""Runs a blocking engine as an asynchronous backend.

`backend` is the event loop's side, `loop` drives the engine. The loop is run by an `Executor`: on a
thread (`executor`) or in a process (`process`).
"""
