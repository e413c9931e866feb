"""Ollama's API: what its requests ask for, and what its answers look like."""
