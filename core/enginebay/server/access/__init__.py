"""Who may use the server: keys, hosts, limits, permissions."""
