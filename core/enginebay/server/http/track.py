"""ASGI middleware that keeps the list of running requests."""

from fastapi import Request

from enginebay.chat.answer.running import RunningRequest, RunningRequests
from enginebay.server.http.asgi import App, Receive, Scope, Send
from enginebay.server.http.web_socket import WebSocketRequest
from enginebay.server.paths import Paths


class TrackRequests:
    """ASGI middleware: each request is one of `requests`, and its `request.state.running`."""

    def __init__(self, app: App, requests: RunningRequests, paths: Paths) -> None:
        self._app = app
        self._requests = requests
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and release what is held for it afterwards."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        request = RunningRequest(f"{scope.get('method', 'GET')} {scope['path']}")
        scope.setdefault("state", {})["running"] = request
        async with self._requests.track(request):
            if scope["type"] == "websocket":
                await WebSocketRequest(scope, receive, send, self._paths).run(self._app)
            else:
                await self._app(scope, receive, send)


def running_request(http: Request) -> RunningRequest:
    """This request in the list of running requests."""
    running: RunningRequest = http.state.running
    return running
