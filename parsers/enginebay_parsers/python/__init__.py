"""Tool calls in Python syntax."""
