"""Chats that continue their last message because of `continue_assistant`."""

from core.chat.schemas.chat_request import ChatCompletionRequest
from core.config.schema import ModelConfig

_SAYS_SO = {"continue_final_message", "add_generation_prompt", "response_prefix"}


def continued(body: ChatCompletionRequest, config: ModelConfig) -> ChatCompletionRequest:
    """The request, set to continue its last message if the config asks for that.

    Frontends send a partial answer this way to have it continued. The request's own settings take
    precedence, and a message that ends in tool calls cannot be continued.
    """
    last = body.messages[-1]
    unfinished = last.role == "assistant" and last.content and not last.tool_calls
    if not config.continue_assistant or not unfinished or body.model_fields_set & _SAYS_SO:
        return body
    return body.model_copy(update={"continue_final_message": True})
