"""The models that are served: loading, unloading, admission, templates, downloads."""
