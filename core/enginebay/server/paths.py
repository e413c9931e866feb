"""What clients of a path expect of its errors, and what wings and plugins say of their paths."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.responses import JSONResponse
from starlette.routing import BaseRoute, Match, compile_path
from starlette.types import Scope

from enginebay.chat.answer.running import RunningRequest
from enginebay.contract.errors import ServingError
from enginebay.contract.routes import ErrorShape, Route, RouteRegister
from enginebay.contract.wing import ErrorForm, Wing
from enginebay.server.running_wings import ask

logger = logging.getLogger(__name__)

_HEALTH = ("/health", "/health/live", "/health/ready", "/livez", "/readyz")

_PUBLIC = (
    "",  # `server.root_path` without a slash at its end, which redirects to "/"
    "/",
    *_HEALTH,
    *(f"/v1{path}" for path in _HEALTH),
    "/.well-known/serviceinfo",
    "/openapi.json",
)
"""Paths that need no key: browsers can send none with a page, nor can what looks after servers."""

_RETRY_AFTER = 2
"""Seconds after which clients should retry, by default."""


class Paths:
    """Which paths need no key, what counts, and what errors look like on every path.

    What plugins say of a path that a route of the server's own answers has no effect.
    """

    def __init__(self, routes: RouteRegister, wings: Sequence[Wing]) -> None:
        self._own: Sequence[BaseRoute] = ()
        self._public = {*_PUBLIC, *(path for wing in wings for path in wing.public)}
        self._public_folders = tuple(path for path in self._public if path[1:].endswith("/"))
        self._routes = [(compile_path(route.path)[0], route) for route in routes.values()]
        forms: dict[str, ErrorForm | ErrorShape] = dict(routes.error_shapes)
        for wing in wings:
            forms |= ask(wing, wing.error_forms)
        self._forms = [(prefix, forms[prefix]) for prefix in sorted(forms, key=len)[::-1]]

    def come_behind(self, own: Sequence[BaseRoute]) -> None:
        """The server's own routes, of which the first that matches answers."""
        self._own = own

    def is_own(self, method: str, path: str) -> bool:
        """Whether a route of the server's own answers."""
        scope = {"type": "http", "method": method, "path": path, "root_path": ""}
        return any(route.matches(scope)[0] == Match.FULL for route in self._own)

    def takes_socket(self, path: str) -> bool:
        """Whether a route of the server's own takes WebSockets."""
        scope = {"type": "websocket", "path": path, "root_path": ""}
        return any(route.matches(scope)[0] == Match.FULL for route in self._own)

    def is_public(self, method: str, path: str) -> bool:
        """Whether anyone may call it."""
        if path in self._public or path.startswith(self._public_folders):
            return True
        route = self._route(method, path)
        return route is not None and route.access == "anyone"

    def is_uncounted(self, method: str, path: str) -> bool:
        """Whether calls of it do not count towards the limits of a key."""
        route = self._route(method, path)
        return route is not None and not route.counted

    def error_body(
        self, scope: Scope, error: ServingError, *, status: int | None = None
    ) -> Mapping[str, Any]:
        """An error as the clients of a path know errors. `status`: another one than the error's."""
        form = self._form(scope["path"])
        try:
            if isinstance(form, ErrorForm):
                return form.body(error, status or error.status, _request_id(scope))
            return dict(form(error)) if form else error.body()
        except Exception:  # a plugin's own code
            logger.exception("the errors of %s have OpenAI's form: theirs failed", scope["path"])
            return error.body()

    def error_response(
        self,
        scope: Scope,
        error: ServingError,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> JSONResponse:
        """An error as the answer to a request, with the headers that belong to its status.

        `status`: another one than the error's.
        """
        status = status or error.status
        headers = {**(headers or {}), **self.id_header(scope)}
        if status in (429, 503):
            headers["Retry-After"] = str(error.retry_after or _RETRY_AFTER)
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.error_body(scope, error, status=status), status, headers=headers)

    def id_header(self, scope: Scope) -> dict[str, str]:
        """The header in which clients of a path look for the id of their request, if they do."""
        form = self._form(scope["path"])
        named = isinstance(form, ErrorForm) and form.id_header
        return {named: _request_id(scope)} if named else {}

    def _form(self, path: str) -> ErrorForm | ErrorShape | None:
        return next((form for prefix, form in self._forms if path.startswith(prefix)), None)

    def _route(self, method: str, path: str) -> Route | None:
        for pattern, route in self._routes:
            if route.method == method and pattern.match(path):
                return None if self.is_own(method, path) else route
        return None


def _request_id(scope: Scope) -> str:
    """The id of a request, which may be refused before it is one that runs."""
    state = scope.setdefault("state", {})
    running: RunningRequest = state.get("running") or state.setdefault("refused", RunningRequest())
    return f"req_{running.id}"
