"""Continuous batching for engines that schedule themselves, independent of the model."""
