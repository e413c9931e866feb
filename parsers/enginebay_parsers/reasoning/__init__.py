"""Reasoning between tags."""
