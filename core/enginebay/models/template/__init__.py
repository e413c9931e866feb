"""Chat templates: rendering them and detecting their features."""
