"""llama-server's `/infill`, `/apply-template` and `/chat/completions/input_tokens`."""

from fastapi import APIRouter, Request, Response

from enginebay.chat.plan.prompt_tokens import CONTEXTS_READ, check_text
from enginebay.chat.plan.rendered_chat import RenderedChat
from enginebay.chat.plan.uncut_tokens import uncut_prompt
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.read_body import Sent
from enginebay.server.api.served import prompted_model
from enginebay.server.http.body_route import BodyRoute, converted
from enginebay.server.http.framing import EVENTS
from enginebay.server.http.headers import ignored_header
from enginebay.server.http.request_id import request_id, tracked
from enginebay.server.http.respond import respond
from enginebay.server.http.track import running_request
from enginebay.server.services import services
from enginebay_llama_server.bodies import AppliedTemplate, InfillAnswer, InfillRequest, InputTokens
from enginebay_llama_server.infill import asked_infill, infilled

router = APIRouter(tags=["llama-server"], route_class=BodyRoute)


@router.post("/infill", response_model=InfillAnswer)
async def infill(body: Sent[InfillRequest], http: Request) -> Response:
    """Fill a gap in a file, as JSON or as server-sent events."""
    asked = await converted(http, asked_infill, body)
    running = tracked(http, asked.body)
    return await respond(http, infilled(services(http).serving, body, asked, running), EVENTS)


@router.post("/apply-template")
async def apply_template(
    body: Sent[ChatCompletionRequest], http: Request, response: Response
) -> AppliedTemplate:
    """The prompt of a chat, as text."""
    chat = await _rendered(body, http, response)
    check_text(chat.model, chat.prompt.text, "messages", contexts=CONTEXTS_READ)
    return AppliedTemplate(prompt=chat.prompt.text)


@router.post("/chat/completions/input_tokens")
async def count_input_tokens(
    body: Sent[ChatCompletionRequest], http: Request, response: Response
) -> InputTokens:
    """How many tokens the prompt of a chat has, be they more than fit."""
    chat = await _rendered(body, http, response)
    token_ids = await uncut_prompt(chat.model, chat.prompt, "messages")
    return InputTokens(input_tokens=len(token_ids))


async def _rendered(body: ChatCompletionRequest, http: Request, response: Response) -> RenderedChat:
    """A chat up to its prompt, planned as if it were to be answered."""
    model = await prompted_model(http, body.model)
    planner, running = services(http).serving.planner, running_request(http)
    salt, id = running.cache_salt(body.cache_salt), request_id(http, body)
    chat = await planner.render(body, model, running.most_tokens, id, salt, fit=False)
    response.headers.update(ignored_header(chat.ignored))
    return chat
