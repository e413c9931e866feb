"""Bodies of these APIs."""
