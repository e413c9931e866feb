"""Text to tokens and back: `/v1/token/*` of TabbyAPI, `/tokenize` and `/detokenize` of vLLM and
llama-server.
"""

from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from enginebay.chat.plan.prompt import Prompt
from enginebay.chat.plan.prompt_tokens import (
    CONTEXTS_READ,
    begins_with_bos,
    check_vocabulary,
    too_long,
)
from enginebay.chat.plan.uncut_tokens import uncut_plain_tokens, uncut_prompt, uncut_tokens
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.read_body import Sent
from enginebay.contract.errors import UnsupportedParameterError
from enginebay.models.served import ServedModel
from enginebay.server.api.served import tokenized_model
from enginebay.server.http.body_route import BodyRoute
from enginebay.server.http.headers import unsupported_header
from enginebay.server.http.track import running_request
from enginebay.server.schemas.token_bodies import (
    ContentTokens,
    DetokenizeRequest,
    DetokenizeResponse,
    TokenDecodeRequest,
    TokenDecodeResponse,
    TokenEncodeRequest,
    TokenEncodeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from enginebay.server.services import services
from enginebay.serving.asked import Names

router = APIRouter(tags=["tokens"], route_class=BodyRoute)

_OF_PROMPTS = {"model", "prompt", "add_special_tokens", "return_token_strs"}
_OF_CONTENT = {"model", "content", "add_special", "parse_special", "with_pieces"}
_OF_MESSAGES = TokenizeRequest.model_fields.keys() - (_OF_CONTENT | {"prompt"}) | {"model"}


@router.post("/token/encode")
async def encode_tokens(
    body: Sent[TokenEncodeRequest], http: Request, response: Response
) -> TokenEncodeResponse:
    """The tokens of a text, or of messages as the model's template renders them."""
    model = await tokenized_model(http, body.model)
    plain, ignored = not body.encode_special_tokens, body.unknown_fields()
    if isinstance(body.text, str):
        text = body.text
        add_bos = body.add_bos_token and (plain or not begins_with_bos(model, text))
    else:
        with Names({"messages": "text"}).in_errors():
            prompt = await _prompt(body.chat(), http, model)
        ignored += prompt.ignored
        if not body.add_bos_token:
            prompt = _without_bos(prompt, model)
        if prompt.pieces:
            _report(http, response, [*ignored, *(["encode_special_tokens"] if plain else [])])
            with_media = await uncut_prompt(model, prompt, "text")
            return TokenEncodeResponse(tokens=with_media, length=len(with_media))
        text, add_bos = prompt.text, prompt.add_special_tokens
    token_ids = None
    if plain:
        token_ids = await uncut_plain_tokens(model, text, "text", add_special_tokens=add_bos)
    if token_ids is None:
        ignored += ["encode_special_tokens"] * plain
        token_ids = await uncut_tokens(model, text, "text", add_special_tokens=add_bos)
    _report(http, response, ignored)
    return TokenEncodeResponse(tokens=token_ids, length=len(token_ids))


@router.post("/token/decode")
async def decode_tokens(
    body: Sent[TokenDecodeRequest], http: Request, response: Response
) -> TokenDecodeResponse:
    """The text of tokens."""
    model = await tokenized_model(http, body.model)
    _check_tokens(model, body.tokens)
    ignored = body.unknown_fields()
    text = None
    if not body.decode_special_tokens:
        try:
            text = await model.backend.detokenize_plain(body.tokens)
        except UnsupportedParameterError:
            ignored.append("decode_special_tokens")
    if text is None:
        text = await model.backend.detokenize(body.tokens)
    _report(http, response, ignored)
    return TokenDecodeResponse(text=text)


@router.post(
    "/tokenize",
    response_model=TokenizeResponse | ContentTokens,
    response_model_exclude_unset=True,
)
async def tokenize(
    body: Sent[TokenizeRequest], http: Request, response: Response
) -> TokenizeResponse | Response:
    """The tokens of a prompt, or of the prompt that messages come to, or of a content."""
    model = await tokenized_model(http, body.model)
    if body.content is not None:
        return await _tokenize_content(body.content, body, model, http)
    if body.prompt is None:
        prompt = await _prompt(body.chat(), http, model)
        token_ids = await uncut_prompt(model, prompt, "messages")
        ignored = [*_fields_beside(body, _OF_MESSAGES), *prompt.ignored]
    else:
        text = body.prompt
        add = body.add_special_tokens is not False and not begins_with_bos(model, text)
        token_ids = await uncut_tokens(model, text, "prompt", add_special_tokens=add)
        ignored = _fields_beside(body, _OF_PROMPTS)
    _report(http, response, ignored)
    answer = TokenizeResponse(
        count=len(token_ids), max_model_len=model.info.context_length, tokens=token_ids
    )
    if body.return_token_strs:
        answer.token_strs = await token_texts(model, token_ids)
    return answer


@router.post("/detokenize")
async def detokenize(
    body: Sent[DetokenizeRequest], http: Request, response: Response
) -> DetokenizeResponse:
    """The text of tokens, special ones written out."""
    model = await tokenized_model(http, body.model)
    _check_tokens(model, body.tokens)
    _report(http, response, body.unknown_fields())
    text = await model.backend.detokenize(body.tokens)
    return DetokenizeResponse(prompt=text, content=text)


async def _tokenize_content(
    text: str, body: TokenizeRequest, model: ServedModel, http: Request
) -> Response:
    ignored = _fields_beside(body, _OF_CONTENT)
    add = body.add_special and not (body.parse_special and begins_with_bos(model, text))
    token_ids = None
    if not body.parse_special:
        token_ids = await uncut_plain_tokens(model, text, "content", add_special_tokens=add)
    if token_ids is None:
        ignored += ["parse_special"] * (not body.parse_special)
        token_ids = await uncut_tokens(model, text, "content", add_special_tokens=add)
    headers = unsupported_header(http, ignored)
    tokens: list[Any] = token_ids
    if body.with_pieces:
        texts = await token_texts(model, token_ids)
        tokens = [{"id": id, "piece": text} for id, text in zip(token_ids, texts, strict=True)]
    # A model for each token takes a second for a long text, in which nothing else is answered.
    answer = to_json({"tokens": tokens})
    return Response(answer, media_type="application/json", headers=headers)


async def token_texts(model: ServedModel, token_ids: Sequence[int]) -> list[str]:
    """The text of each token by itself."""
    texts = {id: await model.backend.detokenize([id]) for id in set(token_ids)}
    return [texts[id] for id in token_ids]


async def _prompt(body: ChatCompletionRequest, http: Request, model: ServedModel) -> Prompt:
    salt = running_request(http).cache_salt(body.cache_salt)
    return await services(http).serving.planner.prompt(body, model, salt)


def _without_bos(prompt: Prompt, model: ServedModel) -> Prompt:
    """The same prompt without a BOS, be it the template's or the tokenizer's."""
    if not begins_with_bos(model, prompt.text):
        return replace(prompt, add_special_tokens=False)
    bos = model.info.special_tokens["bos_token"]
    text, pieces = prompt.text.removeprefix(bos), prompt.pieces
    if pieces and isinstance(pieces[0], str):
        pieces = (pieces[0].removeprefix(bos), *pieces[1:])
    return replace(prompt, text=text, pieces=pieces, add_special_tokens=False)


def _check_tokens(model: ServedModel, token_ids: Sequence[int]) -> None:
    """Raise unless the model has these tokens, and they are no more than a text may have."""
    if len(token_ids) > CONTEXTS_READ * model.info.context_length:
        raise too_long(model, len(token_ids), "tokens")
    check_vocabulary(model, token_ids, "tokens")


def _fields_beside(body: TokenizeRequest, form: Set[str]) -> list[str]:
    """Fields sent that are not of this form of the request."""
    return sorted(body.model_fields_set - form)


def _report(http: Request, response: Response, ignored: Sequence[str]) -> None:
    response.headers.update(unsupported_header(http, ignored))
