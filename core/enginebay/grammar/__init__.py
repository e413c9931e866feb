"""Constrained decoding: grammars and the tokens they allow."""
