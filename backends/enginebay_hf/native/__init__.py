"""Any model of transformers with its own cache: rows padded to the same length, or one alone."""
