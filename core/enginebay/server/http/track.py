"""ASGI middleware that keeps the list of running requests."""

from fastapi import Request

from enginebay.chat.answer.running import RunningRequest, RunningRequests
from enginebay.server.http.asgi import App, Receive, Scope, Send


class TrackRequests:
    """ASGI middleware: each HTTP request is one of `requests`, and its `request.state.running`."""

    def __init__(self, app: App, requests: RunningRequests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and release what is held for it afterwards."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = RunningRequest(f"{scope['method']} {scope['path']}")
        scope.setdefault("state", {})["running"] = request
        async with self._requests.track(request):
            await self._app(scope, receive, send)


def running_request(http: Request) -> RunningRequest:
    """This request in the list of running requests."""
    running: RunningRequest = http.state.running
    return running
