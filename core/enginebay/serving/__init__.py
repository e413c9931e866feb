"""Answers requests, from body to answer, without HTTP: for routes, plugins and Python code."""
