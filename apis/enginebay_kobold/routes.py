"""`/api/v1`, `/api/latest`, `/api/extra`, as KoboldCpp has them: https://lite.koboldai.net/koboldcpp_api."""

import json

from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect

from enginebay.chat.plan.prompt_tokens import begins_with_bos
from enginebay.chat.plan.uncut_tokens import uncut_tokens
from enginebay.chat.schemas.half_characters import whole_text
from enginebay.chat.schemas.read_body import Sent
from enginebay.server.access.guard import needed
from enginebay.server.api.served import known_model, prompted_model, tokenized_model, usable_models
from enginebay.server.http.body_route import JsonRoute
from enginebay.server.http.framing import NAMED
from enginebay.server.http.headers import unsupported_header
from enginebay.server.http.request_id import tracked
from enginebay.server.http.respond import respond
from enginebay.server.http.track import running_request
from enginebay.server.services import services
from enginebay.serving.answer import Answer
from enginebay_kobold import API_VERSION
from enginebay_kobold.bodies import (
    Aborted,
    Generated,
    GeneratedText,
    GenerateRequest,
    KoboldVersion,
    Performance,
    Result,
    TokenCount,
    TokenCountRequest,
    Value,
    Values,
)
from enginebay_kobold.composer import KoboldComposer
from enginebay_kobold.genkeys import Owner, RunningText, RunningTexts
from enginebay_kobold.request import completion_of

router = APIRouter(prefix="/api", tags=["kobold"], route_class=JsonRoute)
_v1 = APIRouter(route_class=JsonRoute)


@_v1.post("/generate", response_model=Generated)
async def generate(body: Sent[GenerateRequest], http: Request) -> Response:
    """Continue a text."""
    return await respond(http, _answer(body, http, stream=False))


@router.post("/extra/generate/stream", response_model=None)
async def generate_stream(body: Sent[GenerateRequest], http: Request) -> Response:
    """Continue a text, as server-sent events."""
    return await respond(http, _answer(body, http, stream=True), NAMED)


@router.get("/extra/generate/check", response_model_exclude_unset=True)
@router.post("/extra/generate/check", response_model_exclude_unset=True)
async def check(http: Request) -> Generated:
    """The text of what is being generated, so far."""
    text = services(http).kept(RunningTexts).so_far(_owner(http), await _genkey(http))
    return Generated(results=[GeneratedText(text=text)])


@router.post("/extra/abort")
async def abort(http: Request) -> Aborted:
    """End what is being generated."""
    services(http).kept(RunningTexts).abort(_owner(http), await _genkey(http))
    return Aborted()


@router.post("/extra/tokencount")
async def count_tokens(
    body: Sent[TokenCountRequest], http: Request, response: Response
) -> TokenCount:
    """The tokens of a text."""
    response.headers.update(unsupported_header(http, body.unknown_keys))
    model = await tokenized_model(http, body.model)
    add = body.special and not begins_with_bos(model, body.prompt)
    ids = await uncut_tokens(model, body.prompt, "prompt", add_special_tokens=add)
    return TokenCount(value=len(ids), ids=ids)


@_v1.get("/model")
async def model(http: Request) -> Result:
    """The name of the default model."""
    return Result(result=f"enginebay/{(await known_model(http, None)).name}")


@_v1.get("/info/version")
async def api_version() -> Result:
    """The version of KoboldAI's API."""
    return Result(result=API_VERSION)


@router.get("/extra/version")
async def version(http: Request) -> KoboldVersion:
    """The version of KoboldCpp's API, and what of it there is."""
    info = (await known_model(http, None)).info
    return KoboldVersion(
        protected=needed(services(http).config.server) == "required",
        vision=info is not None and "image" in info.modalities,
        embeddings=any(each.makes_embeddings for each in usable_models(http)),
    )


@_v1.get("/config/max_length")
async def max_length(http: Request) -> Value:
    """The most tokens that can be asked for."""
    length = await _context_length(http) - 1
    return Value(value=min(length, running_request(http).most_tokens or length))


@router.get("/extra/true_max_context_length")
@_v1.get("/config/max_context_length")
async def max_context_length(http: Request) -> Value:
    """The length of the default model's context."""
    return Value(value=await _context_length(http))


@_v1.get("/config/soft_prompts_list")
async def soft_prompts() -> Values:
    """There are none."""
    return Values()


@_v1.get("/config/soft_prompt")
async def soft_prompt() -> Value:
    """There is none."""
    return Value(value="")


@router.get("/extra/perf")
async def performance(http: Request) -> Performance:
    """How long the last text took, and how busy the models are that the key may use."""
    models = usable_models(http)
    return (
        services(http)
        .kept(RunningTexts)
        .performance(
            running=sum(each.running for each in models),
            waiting=sum(each.waiting for each in models),
        )
    )


async def _answer(body: GenerateRequest, http: Request, *, stream: bool) -> Answer[KoboldComposer]:
    asked = completion_of(body, stream=stream)
    running = tracked(http, asked.body)
    composer = KoboldComposer(f"kobold-{running.id}")
    text = RunningText(
        owner=_owner(http),
        genkey=body.genkey,
        seed=asked.body.seed,
        running=running,
        composer=composer,
    )
    await running.hold(services(http).kept(RunningTexts).during(text))
    planned = await services(http).serving.plan_completion(asked, running, composer.id)
    return Answer(planned, composer)


async def _context_length(http: Request) -> int:
    known = (await known_model(http, None)).context_length
    return known or (await prompted_model(http, None)).info.context_length


def _owner(http: Request) -> Owner:
    key = running_request(http).key
    if key:
        return "key", key.name
    return "address", http.client.host if http.client else ""


async def _genkey(http: Request) -> str:
    """The genkey of a body that may have none, or be none."""
    try:
        body = json.loads(await http.body())
    except (ValueError, RecursionError, ClientDisconnect):
        return ""
    genkey = body.get("genkey") if isinstance(body, dict) else None
    return whole_text(str(genkey or ""))


router.include_router(_v1, prefix="/v1")
router.include_router(_v1, prefix="/latest", include_in_schema=False)
