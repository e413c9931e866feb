"""A blocking engine, and the asynchronous backend that is made of it."""
