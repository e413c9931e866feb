"""OpenAI's Responses: what a request comes to as a chat, and what an answer looks like."""
