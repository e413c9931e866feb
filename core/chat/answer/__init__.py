"""What becomes of the deltas of an engine: collectors, composers, usage."""
