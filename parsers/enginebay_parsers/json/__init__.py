"""Tool calls with JSON arguments, between tags or after a name."""
