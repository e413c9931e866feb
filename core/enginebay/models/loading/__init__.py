"""Loading models: their states, their backends, and the memory these take."""
