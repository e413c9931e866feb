"""The plugin contract: types, errors, backends, engines, formats, hooks."""
