"""Chats that go on with their last message because the config says so."""

from core.chat.schemas.chat_request import ChatCompletionRequest
from core.config.schema import ModelConfig

_SAYS_SO = {"continue_final_message", "add_generation_prompt", "response_prefix"}


def continued(body: ChatCompletionRequest, config: ModelConfig) -> ChatCompletionRequest:
    """The request, going on with its last message if the config wants that of the model's own.

    Frontends send a half-written answer so when somebody asks for more of it. What a request says
    itself about its last message counts, and behind tool calls there is nothing to go on with.
    """
    last = body.messages[-1]
    unfinished = last.role == "assistant" and last.content and not last.tool_calls
    if not config.continue_assistant or not unfinished or body.model_fields_set & _SAYS_SO:
        return body
    return body.model_copy(update={"continue_final_message": True})
