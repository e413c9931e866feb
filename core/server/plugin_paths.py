"""What plugins say of the paths of their routes."""

from collections.abc import Mapping
from typing import Any

from starlette.routing import compile_path

from core.contract.errors import ServingError
from core.contract.routes import Route, RouteRegister


class PluginPaths:
    """Who may call them, what counts, and what errors look like there."""

    def __init__(self, routes: RouteRegister) -> None:
        self._routes = [(compile_path(route.path)[0], route) for route in routes.values()]
        shapes = routes.error_shapes
        self._shapes = [(prefix, shapes[prefix]) for prefix in sorted(shapes, key=len)[::-1]]

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
                return route
        return None
