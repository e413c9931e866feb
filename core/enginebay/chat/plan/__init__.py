"""Plans requests: prompt, sampling params, constraint."""
