"""`/api`, as Ollama has it: https://github.com/ollama/ollama/blob/main/docs/api.md."""

from fastapi import APIRouter

router = APIRouter(tags=["ollama"])
