"""From the messages of a request to the parts of its answer."""
