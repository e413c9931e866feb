"""Saved KV: states of sequences in RAM and on disk, found by prefix. Knows no engine."""
