"""A blocking engine, and the asynchronous backend that is made of it.

`backend` is the event loop's side, `loop` drives the engine. The loop is run by an `Executor`: on a
thread (`executor`) or in a process (`process`).
"""
