"""Tool calls whose arguments are JSON, between tags or behind a name."""
