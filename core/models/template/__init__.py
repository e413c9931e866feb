"""Chat templates: rendering them, and finding out what they can do."""
