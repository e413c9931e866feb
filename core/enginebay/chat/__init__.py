"""From a request's messages to the parts of its answer: planning and reading the output."""
