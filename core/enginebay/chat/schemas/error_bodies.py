"""OpenAI's error answer: https://platform.openai.com/docs/guides/error-codes."""

from pydantic import BaseModel


class ErrorObject(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """OpenAI's error answer."""

    error: ErrorObject
