"""Pictures, sound and video in prompts, for every model of transformers that takes them.

`processor` makes tensors and replacement text of an item, as `prepared` has them, `towers` turns
tensors into rows of hidden states, `inputs` gives forward passes these rows and the positions,
`sample` makes items to try a model with, `probe` finds out by logits which tokens of an item see
each other.
"""
