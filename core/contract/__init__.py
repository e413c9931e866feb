"""What is agreed with plugins: types, errors, backends, engines, formats, hooks."""
