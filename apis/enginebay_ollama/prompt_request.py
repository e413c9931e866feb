"""What a request of `/api/generate` asks for: a chat, or the continuation of a raw prompt."""

from typing import Any

from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.completion_bodies import CompletionRequest
from enginebay.chat.schemas.read_body import read_body
from enginebay.contract.errors import UnsupportedParameterError
from enginebay.serving.asked import Asked, Names
from enginebay_ollama.chat_request import chat_of
from enginebay_ollama.options import generation_fields
from enginebay_ollama.request_bodies import OllamaGenerate


def asked_prompt(body: OllamaGenerate, model: str) -> Asked[ChatCompletionRequest]:
    """The chat of which a prompt is the only question."""
    messages: list[dict[str, Any]] = []
    if body.system:
        messages.append({"role": "system", "content": body.system})
    question = f"messages[{len(messages)}]"
    places = {"messages": "prompt", "messages[0].content": "system"}
    places |= {f"{question}.content": "prompt", f"{question}.images": "images"}
    images = {"images": body.images} if body.images else {}
    messages.append({"role": "user", "content": body.prompt, **images})
    return chat_of(body, {"model": model, "messages": messages}, places)


def asked_text(body: OllamaGenerate, model: str) -> Asked[CompletionRequest]:
    """The continuation of a prompt as it is, or what is between it and its suffix."""
    if body.images:
        raise UnsupportedParameterError(
            "images have no place in a prompt without a template: leave out raw and suffix",
            param="images",
        )
    asked = generation_fields(body)
    if body.logprobs:
        asked.fields["logprobs"] = body.top_logprobs or 0
    if body.suffix:
        asked.fields["suffix"] = body.suffix
    for name in ("system", "think"):
        if getattr(body, name):
            asked.ignored.append(name)
    names = Names(asked.places)
    with names.in_errors():
        fields = {**asked.fields, "model": model, "prompt": body.prompt}
        read = read_body(CompletionRequest, fields)
    return Asked(body=read, names=names, ignored=tuple(asked.ignored))
