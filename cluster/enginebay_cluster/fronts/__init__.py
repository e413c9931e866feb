"""Several servers with one config: what they have in common, and where that is kept."""
