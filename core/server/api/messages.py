"""`/v1/messages`, Anthropic's API: https://docs.claude.com/en/api/messages."""

from fastapi import APIRouter

router = APIRouter(tags=["messages"])
