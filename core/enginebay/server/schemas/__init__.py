"""Bodies of requests that generate no text, and of their answers."""
