"""What plugins say of the paths of their routes."""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.routing import BaseRoute, Match, compile_path

from core.contract.errors import ServingError
from core.contract.routes import Route, RouteRegister


class PluginPaths:
    """Who may call them, what counts, and what errors look like there.

    What plugins say of a path that a route of the server's own answers has no effect.
    """

    def __init__(self, routes: RouteRegister) -> None:
        self._own: Sequence[BaseRoute] = ()
        self._routes = [(compile_path(route.path)[0], route) for route in routes.values()]
        shapes = routes.error_shapes
        self._shapes = [(prefix, shapes[prefix]) for prefix in sorted(shapes, key=len)[::-1]]

    def come_behind(self, own: Sequence[BaseRoute]) -> None:
        """The server's own routes, of which the first that matches answers."""
        self._own = own

    def is_own(self, method: str, path: str) -> bool:
        """Whether a route of the server's own answers."""
        scope = {"type": "http", "method": method, "path": path, "root_path": ""}
        return any(route.matches(scope)[0] == Match.FULL for route in self._own)

    def is_public(self, method: str, path: str) -> bool:
        """Whether anyone may call it."""
        route = self._route(method, path)
        return route is not None and route.access == "anyone"

    def is_uncounted(self, method: str, path: str) -> bool:
        """Whether calls of it do not count towards the limits of a key."""
        route = self._route(method, path)
        return route is not None and not route.counted

    def error_body(self, path: str, error: ServingError) -> Mapping[str, Any]:
        """An error as the clients of this path know errors."""
        for prefix, shape in self._shapes:
            if path.startswith(prefix):
                return shape(error)
        return error.body()

    def _route(self, method: str, path: str) -> Route | None:
        for pattern, route in self._routes:
            if route.method == method and pattern.match(path):
                return None if self.is_own(method, path) else route
        return None
