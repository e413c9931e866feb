"""`/v1/responses`, OpenAI's newer API: https://platform.openai.com/docs/api-reference/responses."""

from fastapi import APIRouter

router = APIRouter(tags=["responses"])
