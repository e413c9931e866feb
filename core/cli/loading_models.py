"""`enginebay models load`, `switch` and `unload`: commands to a running server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from core.cli.console import fail, stderr, stdout
from core.cli.settings import ConfigOption, KeyOption

if TYPE_CHECKING:
    import httpx2

NameArgument = Annotated[
    str, typer.Argument(help="A model of the config, or a file or folder of `model_dir`.")
]
UrlOption = Annotated[str | None, typer.Option(metavar="URL", help="URL of a running server.")]
NowOption = Annotated[bool, typer.Option("--now", help="Abort running requests.")]


def load(
    name: NameArgument,
    url: UrlOption = None,
    config: ConfigOption = None,
    api_key: KeyOption = None,
) -> None:
    """Load a model in addition to those that are loaded; needs an admin key."""
    with _server(url, config, api_key) as http:
        _show_load(http, name, f"/v1/models/{quote(name)}/load", {})


def switch(
    name: NameArgument,
    now: NowOption = False,
    url: UrlOption = None,
    config: ConfigOption = None,
    api_key: KeyOption = None,
) -> None:
    """Load a model in place of the default one, which is unloaded; needs an admin key."""
    with _server(url, config, api_key) as http:
        _show_load(http, name, "/v1/model/load", {"name": name, "skip_queue": now})


def unload(
    name: NameArgument,
    now: NowOption = False,
    url: UrlOption = None,
    config: ConfigOption = None,
    api_key: KeyOption = None,
) -> None:
    """Unload a model once its running requests are done; needs an admin key."""
    with _server(url, config, api_key) as http:
        answer = http.post(f"/v1/models/{quote(name)}/unload", json={"skip_queue": now})
        _require_success(answer)
        stdout().print(f"{answer.json()['id']} is unloaded")


@contextmanager
def _server(url: str | None, config: Any, api_key: str | None) -> Iterator[httpx2.Client]:
    import httpx2

    from core.cli.client import base_url, target, ways_to

    url, api_key, settings = target(url, config, api_key)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    root = base_url(url).removesuffix("/v1")
    try:
        ways = ways_to(url, settings)
        with httpx2.Client(base_url=root, headers=headers, timeout=None, **ways) as client:
            yield client
    except httpx2.TransportError as error:
        fail(f"nothing answers at {url} ({error}); is the server running?")


def _show_load(http: httpx2.Client, name: str, path: str, body: Mapping[str, Any]) -> None:
    """A bar until the model is loaded; interrupting it does not stop the load."""
    from core.cli.loading import Loading

    loading = Loading([name], stderr())
    loading.start()
    try:
        with http.stream("POST", path, json=body) as answer:
            if not answer.is_success:
                answer.read()
            _require_success(answer)
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    _show_event(loading, name, json.loads(line[5:]))
    finally:
        loading.stop()
    stdout().print(f"{name} is ready")


def _show_event(loading: Any, name: str, event: Mapping[str, Any]) -> None:
    if error := event.get("error"):
        loading.stop()
        fail(error["message"])
    loading.report(name, event["stage"], event["module"] / event["modules"])


def _require_success(answer: httpx2.Response) -> None:
    from core.cli.client import KEY_HINT

    if answer.is_success:
        return
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, LookupError, TypeError):
        message = f"{answer.status_code} {answer.reason_phrase}"
    if answer.status_code == 401:
        message += KEY_HINT
    fail(message)
