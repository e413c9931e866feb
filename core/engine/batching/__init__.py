"""What the engines share that batch requests themselves: scheduling, not models."""
