"""Bodies of requests that generate text, and of their answers."""
