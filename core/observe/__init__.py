"""What the server tells of itself: metrics, logs, health, captured requests."""
