"""The configuration: what `config.yml` may say, loading it, checking it."""
