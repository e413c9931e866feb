"""Model folders as transformers writes them: what is in them, their tokenizer, their defaults."""
