"""Tokens of texts and pairs of texts, cut where a request allows it."""

from collections.abc import Sequence

from enginebay.chat.plan.prompt_tokens import CONTEXTS_READ, check_prompt, check_text, tokenize_text
from enginebay.chat.schemas.prompt_fields import Prompts, TokenIds, listed
from enginebay.contract.errors import ContextLengthExceededError, InvalidRequestError
from enginebay.models.served import ServedModel
from enginebay.serving.schemas.pooling_fields import CutFields


async def inputs_tokens(
    model: ServedModel,
    inputs: Prompts,
    body: CutFields,
    *,
    name: str,
    prefix: str = "",
    add_special_tokens: bool,
) -> tuple[list[list[int]], list[str]]:
    """Token ids of each input of a body's field, and its place there."""
    texts: Sequence[str | TokenIds] = listed(inputs, name)
    several = texts is inputs
    params = [f"{name}[{index}]" if several else name for index in range(len(texts))]
    tokens = [
        await input_tokens(
            model,
            text,
            body,
            param=param,
            prefix=prefix,
            add_special_tokens=add_special_tokens,
        )
        for text, param in zip(texts, params, strict=True)
    ]
    return tokens, params


async def input_tokens(
    model: ServedModel,
    text: str | TokenIds,
    body: CutFields,
    *,
    param: str,
    prefix: str = "",
    add_special_tokens: bool = True,
) -> list[int]:
    """Token ids of an input, with `prefix` before it if it is text.

    Special tokens that the tokenizer adds are kept when it is cut. `InvalidRequestError` for an
    input that is empty, does not fit, or cannot be tokenized.
    """
    if not text:
        raise InvalidRequestError(f"{param} is empty", param=param)
    keep = body.kept_tokens(model.info.context_length)
    left = body.truncation_side == "left"
    if not isinstance(text, str):
        tokens = text if keep is None else _cut(text, keep, left=left)
    else:
        text = prefix + (text if keep is None else _readable(model, text, left=left))
        tokens = await tokenize_text(
            model,
            text,
            add_special_tokens=add_special_tokens,
            param=param,
            contexts=1 if keep is None else CONTEXTS_READ + 1,
        )
        if keep is not None and len(tokens) > keep:
            tokens = await _cut_between(model, text, tokens, keep, left=left)
    check_prompt(model, tokens, param, room=0)
    return tokens


async def pair_tokens(
    model: ServedModel,
    query: str,
    document: str,
    body: CutFields,
    *,
    query_param: str,
    param: str,
) -> list[int]:
    """Token ids of a query and a document, which is cut where the request allows it.

    Errors are as of `input_tokens`.
    """
    backend, left = model.backend, body.truncation_side == "left"
    keep = body.kept_tokens(model.info.context_length)
    check_text(model, query, query_param)
    if keep is not None:
        document = _readable(model, document, left=left)
    check_text(model, document, param, contexts=1 if keep is None else CONTEXTS_READ)
    pair = await backend.tokenize_pair(query, document)
    if keep is not None and len(pair) > keep:
        words = await backend.tokenize_plain(document, add_special_tokens=False)
        room = len(words)
        while len(pair) > keep:  # again, where a text becomes more tokens than it was made of
            room -= len(pair) - keep
            if room < 1:
                raise ContextLengthExceededError(
                    f"{query_param} leaves no room for a document in {keep} tokens",
                    param=query_param,
                )
            document = await _text(model, _cut(words, room, left=left))
            pair = await backend.tokenize_pair(query, document)
    check_prompt(model, pair, param, room=0)
    return pair


async def shortened(model: ServedModel, text: str, most: int, *, param: str, left: bool) -> str:
    """A text of at most this many tokens, without those that the tokenizer adds around it."""
    text = _readable(model, text, left=left)
    check_text(model, text, param, contexts=CONTEXTS_READ)
    words = await model.backend.tokenize_plain(text, add_special_tokens=False)
    if len(words) <= most:
        return text
    return await _text(model, _cut(words, most, left=left))


async def _text(model: ServedModel, tokens: Sequence[int]) -> str:
    """Their text, without the marks of characters that were cut in two."""
    return (await model.backend.detokenize(tokens)).strip("\ufffd")


def _readable(model: ServedModel, text: str, *, left: bool) -> str:
    """The part of a text that its last or first tokens can come from."""
    most = CONTEXTS_READ * model.info.context_length * model.info.longest_token
    return text[-most:] if left else text[:most]


async def _cut_between(
    model: ServedModel, text: str, tokens: list[int], keep: int, *, left: bool
) -> list[int]:
    """The tokens of a text, cut to `keep`, without those that the tokenizer adds around it."""
    words = await model.backend.tokenize(text, add_special_tokens=False)
    added = len(tokens) - len(words)
    for before in range(added + 1):
        if tokens[before : before + len(words)] == words and added < keep:
            after = tokens[before + len(words) :]
            return [*tokens[:before], *_cut(words, keep - added, left=left), *after]
    return _cut(tokens, keep, left=left)


def _cut(tokens: Sequence[int], keep: int, *, left: bool) -> list[int]:
    """The last tokens if they are cut on the left, else the first."""
    return list(tokens[max(0, len(tokens) - keep) :] if left else tokens[:keep])
