"""One forward pass over the tokens of many sequences, packed into one row without padding.

`runner` lays the chunks of a step out, `attention` is what the model's attention layers then call,
`memory` holds the keys and values, `probe` checks whether the model's logits stay the same.
"""
