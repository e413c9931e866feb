"""`/` and `/docs`, and the files that browsers load for them."""

import os
from collections.abc import Mapping
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from enginebay.contract.errors import NotOfferedError
from enginebay.plugins import is_there
from enginebay.server.api.about import greet
from enginebay.server.services import services
from enginebay_page import SWAGGER_UI

router = APIRouter(include_in_schema=False)

_FILES = Path(__file__).parent / "static"
_METHODS = ["GET", "HEAD"]

# https://www.w3.org/TR/CSP3/: nothing but this server's own files, no inline script or style. Where
# Trusted Types are known, a script that would turn text into markup fails.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@router.api_route("/", methods=_METHODS)
async def page(http: Request) -> Response:
    """The web UI, or the greeting for which clients of an API look here."""
    if services(http).greeting and "text/html" not in http.headers.get("accept", ""):
        return await greet(http)
    policy = f"{_POLICY}; require-trusted-types-for 'script'"
    return FileResponse(_FILES / "index.html", headers=_headers(policy))


@router.api_route("/page/{path:path}", methods=_METHODS)
async def page_file(path: str, http: Request) -> Response:
    """A file of the web UI."""
    return await _Assets(directory=_FILES).get_response(path, http.scope)


@router.api_route("/docs", methods=_METHODS)
async def docs() -> Response:
    """The documentation of the API, in Swagger UI."""
    _swagger_ui()
    return FileResponse(_FILES / "docs.html", headers=_headers(_POLICY))


@router.api_route("/docs/assets/{path:path}", methods=_METHODS)
async def docs_file(path: str, http: Request) -> Response:
    """A file of Swagger UI."""
    return await _swagger_ui().get_response(path, http.scope)


def _swagger_ui() -> "_Assets":
    if not is_there(SWAGGER_UI):
        raise NotOfferedError(
            "/docs needs the package fastapi-offline, which is not installed. "
            "Install it with: pip install 'enginebay[page]'"
        )
    return _Assets(packages=[(SWAGGER_UI, "static")])


def _headers(policy: str) -> Mapping[str, str]:
    return {**_HEADERS, "Content-Security-Policy": policy}


class _Assets(StaticFiles):
    """Files to be asked for anew each time, and sent when they have changed."""

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        """A file; the type of scripts does not depend on what the machine calls them."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(_headers(_POLICY))
        if Path(full_path).suffix == ".js" and response.status_code == 200:
            response.headers["Content-Type"] = "text/javascript; charset=utf-8"
        return response
