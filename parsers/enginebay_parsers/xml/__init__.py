"""Tool calls whose arguments stand between tags, one by one or in each other."""
