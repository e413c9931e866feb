"""Turns engine deltas into answers: collectors, composers, usage."""
