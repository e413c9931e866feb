"""What all routes share: responses, limits, access log, the listening server."""
