"""Routes, a module for each family."""
