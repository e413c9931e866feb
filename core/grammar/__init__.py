"""What an answer must look like: grammars, and the tokens that keep to them."""
