"""The served models: loading, unloading, admission, templates, downloads."""
