"""Embedding models, rerankers, classifiers and reward models of transformers.

`folder` says what a model is, `loading` makes an engine of it, of a `pooler` with one of `heads`.
"""
