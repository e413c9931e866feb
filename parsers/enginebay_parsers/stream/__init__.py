"""Text that arrives in pieces: tags, JSON and literals in it, and the parts that come out."""
