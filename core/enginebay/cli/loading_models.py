"""`enginebay models load`, `switch` and `unload`: commands to a running server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from enginebay.cli.console import stderr, stdout
from enginebay.cli.settings import ConfigOption, KeyOption, UrlOption

if TYPE_CHECKING:
    import httpx2

NameArgument = Annotated[
    str, typer.Argument(help="A model of the config, or a file or folder of `model_dir`.")
]
NowOption = Annotated[bool, typer.Option("--now", help="Abort running requests.")]


def load(
    name: NameArgument,
    url: UrlOption = None,
    config: ConfigOption = None,
    api_key: KeyOption = None,
) -> None:
    """Load a model in addition to those that are loaded; needs an admin key."""
    from enginebay.cli.client import running_server

    with running_server(url, config, api_key) as http:
        _show_load(http, name, f"/v1/models/{quote(name)}/load", {})


def switch(
    name: NameArgument,
    now: NowOption = False,
    url: UrlOption = None,
    config: ConfigOption = None,
    api_key: KeyOption = None,
) -> None:
    """Load a model in place of the default one, which is unloaded; needs an admin key."""
    from enginebay.cli.client import running_server

    with running_server(url, config, api_key) as http:
        _show_load(http, name, "/v1/model/load", {"name": name, "skip_queue": now})


def unload(
    name: NameArgument,
    now: NowOption = False,
    url: UrlOption = None,
    config: ConfigOption = None,
    api_key: KeyOption = None,
) -> None:
    """Unload a model once its running requests are done; needs an admin key."""
    from enginebay.cli.client import body_of, running_server

    with running_server(url, config, api_key) as http:
        path = f"/v1/models/{quote(name)}/unload"
        unloaded = body_of(http.post(path, json={"skip_queue": now}))
        stdout().print(f"{unloaded['id']} is unloaded")


def _show_load(http: httpx2.Client, name: str, path: str, body: Mapping[str, Any]) -> None:
    """A bar until the model is loaded; interrupting it does not stop the load."""
    from enginebay.cli.client import events_of
    from enginebay.cli.loading import Loading

    loading = Loading([name], stderr())
    loading.start()
    try:
        with http.stream("POST", path, json=body) as response:
            for event in events_of(response):
                loading.report(name, event["stage"], event["module"] / event["modules"])
    finally:
        loading.stop()
    stdout().print(f"{name} is ready")
