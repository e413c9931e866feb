"""Anthropic's Messages API over chats."""
