"""TabbyAPI's routes for chat templates: list, switch, unload."""

from fastapi import APIRouter, Request

from enginebay.chat.schemas.read_body import Sent
from enginebay.contract.errors import InvalidRequestError
from enginebay.models.loading.entry import ModelEntry
from enginebay.models.template.template_set import template_names
from enginebay.server.access.auth import needs, reach
from enginebay.server.api.served import configured_model
from enginebay.server.http.body_route import BodyRoute
from enginebay.server.schemas.switch_bodies import (
    TemplateList,
    TemplateSwitchRequest,
    TemplateUnloadRequest,
)
from enginebay.server.services import services

router = APIRouter(tags=["templates"], route_class=BodyRoute)


@router.get("/template/list")
@router.get("/templates")
async def list_templates(http: Request, model: str | None = None) -> TemplateList:
    """The names that `switch` accepts; non-admins see only the one in use."""
    asked = await configured_model(http, model)
    if reach(http, "change_template") == "all":
        return TemplateList(data=template_names(asked.served().info, services(http).config.base))
    return TemplateList(data=_used(asked))


@router.post("/template/switch", dependencies=[needs("change_template")])
async def switch_template(body: Sent[TemplateSwitchRequest], http: Request) -> TemplateList:
    """Use another template for the model's later chats, until the model is unloaded."""
    entry = await configured_model(http, body.model)
    model = entry.served()
    if model.info.chats:
        raise InvalidRequestError(
            f"model {model.name!r} takes chat messages; its prompts are rendered elsewhere",
            param="model",
        )
    name = body.prompt_template_name.removesuffix(".jinja")
    known = template_names(model.info, services(http).config.base)
    if name not in known:
        raise InvalidRequestError(
            f"there is no chat template {name!r}; available: {', '.join(known) or 'none'}",
            param="prompt_template_name",
        )
    return await _use(http, entry, name)


@router.post("/template/unload", dependencies=[needs("change_template")])
async def unload_template(
    http: Request, body: Sent[TemplateUnloadRequest] | None = None
) -> TemplateList:
    """Return to the template of the config, or the model's own."""
    return await _use(http, await configured_model(http, body.model if body else None), None)


async def _use(http: Request, model: ModelEntry, name: str | None) -> TemplateList:
    async def use() -> None:
        await model.use_template(name, services(http).plugins, services(http).config.base)

    await services(http).peers.change("template", model.name, use, lambda: name)
    return TemplateList(data=_used(model))


def _used(model: ModelEntry) -> list[str]:
    """The name of the template that is in use, if there is one."""
    name = model.served().template_name
    return [name] if name else []
