"""What API keys use, kept over restarts."""
