"""Paths with doubled slashes, or with one at the end."""

import re
from urllib.parse import quote

from enginebay.server.http.asgi import App, Receive, Scope, Send
from enginebay.server.paths import Paths

_DOUBLED = re.compile("/{2,}")


class Slashes:
    """ASGI middleware, the outermost one: a path with superfluous slashes means the plain path.

    Clients join a base URL and a path with one slash too many. All rules about paths see the plain
    path. A slash at the end is superfluous if the same route has the path with and without it, for
    example that of a model. `root` is the path before all others, if a proxy does not remove it.
    """

    def __init__(self, app: App, root: str, paths: Paths) -> None:
        self._app = app
        self._root = root
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its plain path."""
        if scope["type"] != "lifespan" and ("//" in scope["path"] or scope["path"].endswith("/")):
            path = without_doubled(scope["path"])
            own = path.removeprefix(self._root)
            if own.endswith("/") and all(
                self._paths.is_own(scope.get("method", ""), each) for each in (own, own[:-1])
            ):
                path = path[:-1]
            scope["path"], scope["raw_path"] = path, quote(path).encode()
        await self._app(scope, receive, send)


def without_doubled(path: str) -> str:
    """Return a path with single slashes."""
    return _DOUBLED.sub("/", path)
