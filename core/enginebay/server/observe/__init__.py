"""Metrics, logs, liveness."""
