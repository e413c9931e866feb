"""The configuration: the schema of `config.yml`, loading and checking it."""
