"""`enginebay cluster`."""
