"""Routes about the server: version, permission, props, service info."""

from importlib.metadata import PackageNotFoundError, metadata

from fastapi import APIRouter, Request, Response
from starlette.responses import PlainTextResponse

from enginebay.server.access.auth import is_admin
from enginebay.server.api.served import configured_model
from enginebay.server.api_document import ApiDocument
from enginebay.server.running_wings import ask
from enginebay.server.schemas.about_bodies import (
    Api,
    GenerationSettings,
    Modalities,
    Permission,
    Props,
    ServiceInfo,
    Software,
    Version,
)
from enginebay.server.services import services

router = APIRouter(tags=["server"])
public = APIRouter(tags=["server"])
"""What needs no key."""


@router.get("/version")
async def version(http: Request) -> Version:
    """The version of Enginebay."""
    return Version(version=http.app.version)


@router.get("/auth/permission")
async def permission(http: Request) -> Permission:
    """Whether the request's key is an admin's."""
    return Permission(permission="admin" if is_admin(http) else "api")


@router.get("/props", response_model_exclude_none=True)
async def props(http: Request, model: str | None = None) -> Props:
    """What frontends need to know about a model before using it."""
    asked = (await configured_model(http, model)).served()
    usual = asked.templates.choose(with_tools=False)
    special = asked.info.special_tokens
    return Props(
        chat_template=usual and usual.template.source,
        bos_token=special.get("bos_token"),
        eos_token=special.get("eos_token"),
        default_generation_settings=GenerationSettings(n_ctx=asked.info.context_length),
        total_slots=min(
            filter(None, (asked.info.max_batch_size, asked.config.max_running)), default=None
        ),
        model_alias=asked.name,
        modalities=Modalities(
            vision="image" in asked.info.modalities,
            audio="audio" in asked.info.modalities,
            video="video" in asked.info.modalities,
        ),
    )


async def greet(http: Request) -> Response:
    """The greeting of an API at `/`, where browsers may get a page."""
    return PlainTextResponse(services(http).greeting, headers={"Vary": "Accept"})


@public.get("/openapi.json", include_in_schema=False)
async def openapi(http: Request) -> Response:
    """The description of the API, with the path before it if a proxy has one."""
    document = await services(http).kept(ApiDocument).below(http.state.prefix, http.app)
    return Response(document, media_type="application/json")


@public.get("/.well-known/serviceinfo")
async def service_info(http: Request) -> ServiceInfo:
    """What this software is and which APIs it has; needs no key."""
    links, own = _links(), services(http).paths.is_own
    here = str(http.base_url.replace(path=f"{http.state.prefix}/"))
    homepage = links.get("homepage") or here
    apis = {
        "openai": Api(
            name="OpenAI API",
            version="1",
            rel_url="/v1",
            relative_url="/v1",
            documentation=http.state.prefix + ("/docs" if own("GET", "/docs") else "/openapi.json"),
        )
    }
    for wing in services(http).wings:
        apis |= {name: Api(**about) for name, about in ask(wing, wing.service_info).items()}
    return ServiceInfo(
        software=Software(
            name=http.app.title,
            version=http.app.version,
            repository=links.get("repository") or homepage,
            homepage=homepage,
        ),
        api=apis,
    )


def _links() -> dict[str, str]:
    """The project URLs in the package metadata, by name."""
    try:
        urls = metadata("enginebay").get_all("Project-URL") or []
    except PackageNotFoundError:
        return {}
    pairs = (url.partition(",") for url in urls)
    return {name.strip().lower(): url.strip() for name, _, url in pairs}
