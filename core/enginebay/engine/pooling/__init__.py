"""Engines that generate nothing: embeddings, scores and classes of texts, in shared passes."""
