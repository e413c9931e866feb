"""Answers of `/v1/responses` that later requests go on from."""
