"""Engines on the machines of a Ray cluster, each a replica of a deployment of Ray Serve."""
