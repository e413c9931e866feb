"""Pictures: the towers of exllamav2, and what stands for a picture in a prompt."""
