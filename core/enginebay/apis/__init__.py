"""Other APIs over the same answers: their bodies, what they ask for, what answers look like."""
