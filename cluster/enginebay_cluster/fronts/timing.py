"""How long a front and the ledger wait for each other."""

BEAT = 2.0
"""Seconds between two signs of life of a front."""

SILENCE = 10.0
"""Seconds without one after which a front has lost what it held."""

SETTLE = 1.0
"""Seconds in which a new ledger lets nobody in: fronts say what runs with them."""

RETRY = 0.2
"""Seconds until something that failed is tried again."""

PATIENCE = 5.0
"""Seconds for which requests wait for a ledger that cannot be reached."""
