"""What a request comes to: prompt, sampling params, constraint."""
