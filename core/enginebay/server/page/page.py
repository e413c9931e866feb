"""The page at `/` and the API's documentation at `/docs`: files, none of them from the network."""

import os
from collections.abc import Mapping
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_FILES = Path(__file__).parent / "static"

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


def add_page(app: FastAPI, *, ollama: bool) -> None:
    """Serve both. They hold no secrets and need no key; what they ask the API for does.

    `ollama`: clients that are no browsers are told at `/` that there is one, for which they look.
    """

    async def page(http: Request) -> Response:
        if ollama and "text/html" not in http.headers.get("accept", ""):
            return PlainTextResponse("Ollama is running", headers={"Vary": "Accept"})
        policy = f"{_POLICY}; require-trusted-types-for 'script'"
        return FileResponse(_FILES / "index.html", headers=_headers(policy))

    async def docs() -> Response:
        return FileResponse(_FILES / "docs.html", headers=_headers(_POLICY))

    for path, route in (("/", page), ("/docs", docs)):
        app.add_api_route(path, route, methods=["GET", "HEAD"], include_in_schema=False)
    app.mount("/page", _Assets(directory=_FILES))
    app.mount("/docs/assets", _Assets(packages=[("fastapi_offline", "static")]))


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
