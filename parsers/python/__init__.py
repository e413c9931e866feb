"""Tool calls in the manner of Python."""
