"""What a function's JSON Schema says of its arguments, for readers and for grammars."""
