"""What engines share that choose tokens in numpy, one row of logits at a time."""
